"""The part of a DataLoader that runs in worker processes."""
