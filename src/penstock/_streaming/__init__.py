"""Datasets that are read in order: their definition, and stages, which yield the same elements from any token on.

The problem: `filter`, `pack`, `window_shuffle` and other *folds* compute each result from elements before it, so
element N can't be computed from N. Even so a run must be resumable at any batch, in time that doesn't grow with the
epoch, and its state must be small: positions, and no data.

The solution has three parts.

1. *Block inputs and stages.* Below the folds, everything depends on positions alone: these parts of the graph are
   block inputs (`_inputs`), and workers compute them in blocks. Each step above is a stage (`_stage`); stages
   are generators of chunks in one thread. The steps above the last fold need one batch's rows only, so workers
   compute them, too (`_collate`).
2. *Tokens.* Each element has two tokens, nested tuples of integers and strings (`_stage`): `start` is the place
   before the element, `after` the place behind it. A fold's token has its parent's token, and the tokens of the
   elements that it holds open: the first element of a window, the documents of open sequences. To resume, a fold
   computes these again, and nothing else.
3. *Rank segments.* One of several ranks reads every `count`-th position of each input. If the number of ranks
   changes, the elements that an old rank holds open become a segment of a new rank, and the unread positions are
   dealt to all new ranks (`_inputs`).

Rejected: a state with the held elements themselves, as of a shuffle buffer, would be as large as the data; a state
with a count of elements would need the epoch to be read again.

Invariants:
  - Elements and tokens don't depend on the sizes of chunks, which are decisions (`_decisions`).
  - The elements equal those of `_in_order`, from any token on.
  - Nothing here knows of threads: the reader of block inputs is a parameter.
"""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._streaming._batch import Rest as Rest
    from penstock._streaming._bucket import Bucket as Bucket
    from penstock._streaming._check import check_graph as check_graph
    from penstock._streaming._collate import Collate as Collate
    from penstock._streaming._collate import CollateRun as CollateRun
    from penstock._streaming._concatenate import Concatenate as Concatenate
    from penstock._streaming._in_order import elements as elements
    from penstock._streaming._inputs import BlockInput as BlockInput
    from penstock._streaming._inputs import InputRange as InputRange
    from penstock._streaming._inputs import RankSegment as RankSegment
    from penstock._streaming._inputs import Reader as Reader
    from penstock._streaming._inputs import count_positions as count_positions
    from penstock._streaming._inputs import is_block_input as is_block_input
    from penstock._streaming._inputs import never as never
    from penstock._streaming._inputs import one_by_one as one_by_one
    from penstock._streaming._inputs import read_inline as read_inline
    from penstock._streaming._interleave import Interleave as Interleave
    from penstock._streaming._limit import Limit as Limit
    from penstock._streaming._mix import Mix as Mix
    from penstock._streaming._opening import Opening as Opening
    from penstock._streaming._opening import check_whole as check_whole
    from penstock._streaming._opening import dealt_rank_segments as dealt_rank_segments
    from penstock._streaming._opening import even_limit as even_limit
    from penstock._streaming._opening import first_rank_segment as first_rank_segment
    from penstock._streaming._opening import input_refs_of as input_refs_of
    from penstock._streaming._opening import open_stages as open_stages
    from penstock._streaming._opening import positions_of as positions_of
    from penstock._streaming._opening import rank_segments_from_json as rank_segments_from_json
    from penstock._streaming._opening import rank_segments_to_json as rank_segments_to_json
    from penstock._streaming._opening import token_at as token_at
    from penstock._streaming._opening import worker_collate as worker_collate
    from penstock._streaming._pack import Pack as Pack
    from penstock._streaming._policy import MAX_INPUTS as MAX_INPUTS
    from penstock._streaming._stage import LARGEST as LARGEST
    from penstock._streaming._stage import Chunk as Chunk
    from penstock._streaming._stage import InputRef as InputRef
    from penstock._streaming._stage import Provenance as Provenance
    from penstock._streaming._stage import Stage as Stage
    from penstock._streaming._stage import StreamedLocations as StreamedLocations
    from penstock._streaming._stage import Token as Token
    from penstock._streaming._stage import late_token as late_token
    from penstock._streaming._stage import made_token as made_token
    from penstock._streaming._stage import no_provenance as no_provenance
    from penstock._streaming._user_fold import UserFold as UserFold
    from penstock._streaming._window_shuffle import WindowShuffle as WindowShuffle
    from penstock._streaming._zip import Zip as Zip
else:
    # Loaded on demand: a dataset whose elements have positions needs none of this.
    __getattr__ = _lazy.from_modules(
        __name__,
        Rest="penstock._streaming._batch",
        Bucket="penstock._streaming._bucket",
        check_graph="penstock._streaming._check",
        Collate="penstock._streaming._collate",
        CollateRun="penstock._streaming._collate",
        Concatenate="penstock._streaming._concatenate",
        elements="penstock._streaming._in_order",
        BlockInput="penstock._streaming._inputs",
        InputRange="penstock._streaming._inputs",
        RankSegment="penstock._streaming._inputs",
        Reader="penstock._streaming._inputs",
        count_positions="penstock._streaming._inputs",
        is_block_input="penstock._streaming._inputs",
        one_by_one="penstock._streaming._inputs",
        never="penstock._streaming._inputs",
        read_inline="penstock._streaming._inputs",
        Interleave="penstock._streaming._interleave",
        Limit="penstock._streaming._limit",
        Mix="penstock._streaming._mix",
        LARGEST="penstock._streaming._stage",
        MAX_INPUTS="penstock._streaming._policy",
        Opening="penstock._streaming._opening",
        check_whole="penstock._streaming._opening",
        dealt_rank_segments="penstock._streaming._opening",
        even_limit="penstock._streaming._opening",
        first_rank_segment="penstock._streaming._opening",
        input_refs_of="penstock._streaming._opening",
        open_stages="penstock._streaming._opening",
        positions_of="penstock._streaming._opening",
        rank_segments_from_json="penstock._streaming._opening",
        rank_segments_to_json="penstock._streaming._opening",
        token_at="penstock._streaming._opening",
        worker_collate="penstock._streaming._opening",
        Pack="penstock._streaming._pack",
        Chunk="penstock._streaming._stage",
        InputRef="penstock._streaming._stage",
        Provenance="penstock._streaming._stage",
        Stage="penstock._streaming._stage",
        StreamedLocations="penstock._streaming._stage",
        Token="penstock._streaming._stage",
        late_token="penstock._streaming._stage",
        made_token="penstock._streaming._stage",
        no_provenance="penstock._streaming._stage",
        UserFold="penstock._streaming._user_fold",
        WindowShuffle="penstock._streaming._window_shuffle",
        Zip="penstock._streaming._zip",
    )
