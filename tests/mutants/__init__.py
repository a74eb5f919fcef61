"""Small faults planted in the source, each of which some test must catch."""
