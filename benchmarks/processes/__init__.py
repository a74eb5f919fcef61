"""Scenarios about worker processes: what they carry, hold, cost, and survive."""
