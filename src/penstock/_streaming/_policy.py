"""The policy of datasets that are read in order: sizes and times that trade one thing for another, with the reasons.

No element depends on a number here. A comment says what a number bounds, and, after the colon, why it has this value.
"""

from typing import Final

CHUNK_SECONDS: Final = 0.002  # work of a chunk, after which a stage yields what it has: no batch waits long for others
INPUT_ELEMENTS: Final = 4096  # of a chunk of all block inputs together: the parts of a mixture share the memory
CHUNK_ELEMENTS: Final = 1024  # made by a user's function or fold at once: they are in memory (one element stays whole)
COMPARED_ELEMENTS: Final = 8  # of a stream, at its begin: an iterable that uses a buffer again does so from the first
MAX_STREAM_ELEMENTS: Final = 64  # of a chunk of a stream: each waits for the last one, and a stream may pause
MAX_MIXTURE_ELEMENTS: Final = 64  # of a chunk of parts that are read in turns: the parts read no further ahead
PACKED_DOCUMENTS: Final = 1024  # assigned and filled at once by `pack`: a call costs as much as some hundred of them
PACKED_BYTES: Final = 4_000_000  # of these documents, from which there are no more: they are in memory together
MAX_INPUTS: Final = 64  # block inputs for which workers read ahead: each takes slots of the ring, and memory
SNAPSHOT_EVERY: Final = 16  # elements between two states of a stream: taking one may be slow, reading 16 again is quick
SKIPPED_ELEMENTS: Final = 1024  # of a stream, read and dropped: opening the iterable at its state takes longer
MAX_APART: Final = 64  # elements between two tokens that one run of a stage serves: each is computed again
CHECKED_PER_FOLD: Final = 4  # elements of a fold that a check reads for each of a function: a fold may return few
CHECKED_AFTER_RESUME: Final = 8  # elements that a check adds to a fold that was resumed: it may differ only then
CHECKED_INPUTS: Final = 256  # of each input that a check reads for each element: a filter may pass few, or none
EMPTY_PASSES: Final = 20  # of a repeat without end, before an error: an element that is read by chance comes in these
EMPTY_ELEMENTS: Final = 100_000  # of these passes, at least: if a filter accepts one of 1,000, by chance, one comes
