"""Carrying messages from a child process: what is carried, the child that sends, and the ways that we measure."""
