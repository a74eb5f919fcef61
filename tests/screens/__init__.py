"""Pictures of what Penstock shows: `python -m tests.screens` writes those of the documentation."""
