"""What a dataset is: nodes and their meaning. No threads, no async, nothing that knows it runs concurrently."""
