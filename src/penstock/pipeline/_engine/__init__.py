"""A pipeline at work: opened, run on a loop in a background thread, and watched."""
