"""Batches move between threads, and later processes, without a copy: the slot ring, leased memory, and the bell."""
