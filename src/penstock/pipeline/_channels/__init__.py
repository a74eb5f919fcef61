"""Items on their way: between two stages, past a fork or a junction, and to the foreground."""
