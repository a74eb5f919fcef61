"""Batches move between threads, and later processes, without a copy: the slot ring, leased memory, and the bell."""

from penstock.transport._memory import leased_slots as leased_slots
