"""The fork server: a clean process that imports the modules of child processes once, and forks these."""
