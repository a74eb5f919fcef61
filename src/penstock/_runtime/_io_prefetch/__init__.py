"""What runs ahead of workers and consumer on the pipeline engine: the reads of async sources."""
