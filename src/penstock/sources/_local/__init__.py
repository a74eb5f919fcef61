"""Local files for sources: their listing, the index of their records, and their descriptors."""
