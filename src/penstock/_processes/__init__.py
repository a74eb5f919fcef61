"""Child processes: how their parent starts, watches and ends them, how they begin, and how their exceptions travel."""
