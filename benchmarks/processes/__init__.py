"""Scenarios about worker processes: their rate, their memory, their cost, and their crashes."""
