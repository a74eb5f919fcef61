"""What stages do with items: each kind of operation, the threads it may run on, and what becomes of failures."""
