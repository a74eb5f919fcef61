"""The report that the demo leaves: a page, its charts, and what is said on it."""
