"""Sources with an async `read`: detection, and reads from plain code on an event loop of their own."""
