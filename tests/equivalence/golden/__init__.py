"""Golden records of what the public verbs yield, and of the states, fingerprints and seeds that belong to it."""
