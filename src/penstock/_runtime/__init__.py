"""Opening a plan: rows, batches, workers and memory, in one scope. The only package that knows them all."""
