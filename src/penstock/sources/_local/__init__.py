"""What sources know of local files: where they are, where records begin in them, and how they are opened."""
