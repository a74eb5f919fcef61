"""The engine: stages as tasks of one event loop, channels between them, threads for what is not async."""
