"""What datasets promise, by examples that a user would try."""
