"""Golden records of the batches that the public verbs yield, and of their states, fingerprints and seeds."""
