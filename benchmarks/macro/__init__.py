"""Scenarios: each file has a function from its surroundings to what is measured."""
