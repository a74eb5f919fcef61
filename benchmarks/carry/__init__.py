"""Carrying messages from a child process: the messages, the child that sends them, and the measured ways."""
