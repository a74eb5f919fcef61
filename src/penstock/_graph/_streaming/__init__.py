"""Stages: the opened steps of a dataset that is read in order, which yield chunks of elements from any token on.

The problem: `filter`, `pack`, `window_shuffle` and other *folds* compute each result from elements before it, so
element N can't be computed from N. Even so a run must be resumable at any batch, in time that doesn't grow with the
epoch, and its state must be small: positions, and no data.

The solution has three parts.

1. *Block inputs and stages.* Below the folds, everything depends on positions alone: these parts of the graph are
   block inputs (`_block_input`), and workers compute them in blocks. Each step above is a stage (`_stage`); stages
   are generators of chunks in one thread. The steps above the last fold need one batch's rows only, so workers
   compute them, too (`_collate`).
2. *Tokens.* Each element has two tokens, nested tuples of integers and strings (`_chunk`): `start` is the place
   before the element, `after` the place behind it. A fold's token has its parent's token, and the tokens of the
   elements that it holds open: the first element of a window, the documents of open sequences. To resume, a fold
   computes these again, and nothing else.
3. *Rank segments.* One of several ranks reads every `count`-th position of each input. If the number of ranks
   changes, the elements that an old rank holds open become a segment of a new rank, and the unread positions are
   dealt to all new ranks (`_rank_segments`, `_deal`).

Rejected: a state with the held elements themselves, as of a shuffle buffer, would be as large as the data; a state
with a count of elements would need the epoch to be read again.

Invariants:
  - Elements and tokens don't depend on the sizes of chunks, which are decisions (`_decisions`).
  - The elements equal those of `_graph._in_order`, from any token on.
  - Nothing here knows of threads: the reader of block inputs is a parameter.
"""
