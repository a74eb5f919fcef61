"""Random decisions: most examples draw the decisions that depend on time, and the others leave them to time."""

from hypothesis import strategies as st

from penstock._decisions import random_decisions as random_decisions

DECISIONS: st.SearchStrategy[int | None] = st.integers(0, 1 << 16) | st.none()
"""Seeds for `random_decisions`."""
