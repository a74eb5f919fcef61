"""Workers: threads and processes that run blocks claimed from a slot ring. They know no dataset and no plan."""
