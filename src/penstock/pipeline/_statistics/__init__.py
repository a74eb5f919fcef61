"""Where a pipeline's time goes: what a stage counts while it runs, and what is told from it."""
