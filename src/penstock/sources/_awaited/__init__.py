"""Sources whose `read` is async: told from the others, and read from plain code on an event loop of their own."""
