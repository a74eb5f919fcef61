"""Whole programs that load with torch's class, and with ours in its place."""
