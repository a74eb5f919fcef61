"""Whole programs that load by torch's class, and by ours in its place."""
