"""What worker processes do for a DataLoader."""
