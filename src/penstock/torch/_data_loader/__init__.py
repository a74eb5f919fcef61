"""A DataLoader with the semantics of torch's own, on Penstock's workers."""
