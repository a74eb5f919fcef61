"""How a dataset will run: places, limits and stages, as plain data."""
