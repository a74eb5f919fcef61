"""Processes of ours: how they begin, what their parent holds of them, and how their errors come back."""
