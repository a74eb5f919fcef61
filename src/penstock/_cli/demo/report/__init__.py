"""The demo's report: a page, its charts, and its text."""
