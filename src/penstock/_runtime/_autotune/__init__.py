"""Measurements for the choice of workers: the cost of rows, the processors, and whether processes are possible."""
