"""Benchmarks: scenarios with their own limits, measured side by side and reported as shares of the limit."""
