"""What a description means: names, random streams, errors and identity."""
