"""A DataLoader with torch's own meaning, on Penstock's workers."""
