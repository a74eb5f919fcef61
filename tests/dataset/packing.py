"""Documents whose tokens say where they are from, and stages that are read in chunks of any size."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from penstock._graph._apply import Context
from penstock._streaming._inputs import BlockInput
from penstock._streaming._opening import Opening, first_rank_segment, open_stages
from penstock._streaming._stage import Chunk, Token
from tests.equivalence.definition import digest

Step = tuple[Any, Token, Token]
"""An element's digest, and the tokens before and after it."""


def documents(lengths: list[int]) -> list[NDArray[np.int64]]:
    """Return documents whose tokens say which document and position they are from."""
    return [np.arange(length) + 1000 * number + 1 for number, length in enumerate(lengths)]


def bare(lengths: list[int]) -> ps.Dataset:
    """Return documents that are bare arrays."""
    return ps.read(documents(lengths))


def all_tokens(lengths: list[int]) -> Counter[int]:
    """Return every token of the documents."""
    return Counter(token for document in documents(lengths) for token in document.tolist())


def read_by(sizes: list[int]) -> Callable[[BlockInput, int], Iterator[Chunk]]:
    """Return a reader of a block input, in chunks of these sizes, over and over."""

    def read(block_input: BlockInput, start: int) -> Iterator[Chunk]:
        number = 0
        while start < block_input.input_range.total:
            stop = min(start + sizes[number % len(sizes)], block_input.input_range.total)
            yield block_input.chunk(start, stop, block_input.evaluate(start, stop, block_input.context))
            start, number = stop, number + 1

    return read


def follow(
    dataset: ps.Dataset, sizes: list[int], token: Token = None, ranks: tuple[int, int] = (0, 1), every: int = 1
) -> list[Step]:
    """Return the elements after a token, read in chunks of these sizes, on one rank of several.

    Only every so-many-th token is requested; the others are None.
    """
    opening = Opening(0, ranks[1], read_by(sizes), Context())
    stage = open_stages(dataset.node, (first_rank_segment(dataset.node, *ranks),), opening)
    found: list[Step] = []
    for chunk in stage.run(stage.start() if token is None else token):
        for number, element in enumerate(chunk.elements):
            is_requested = len(found) % every == 0
            start, after = (chunk.starts[number], chunk.afters[number]) if is_requested else (None, None)
            found.append((digest(element), start, after))
    return found
