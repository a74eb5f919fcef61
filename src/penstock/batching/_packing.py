"""How documents are packed into sequences of a fixed length: the description, without the doing."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

How: TypeAlias = Literal["best_fit", "split"]
Long: TypeAlias = Literal["split", "drop"]


@dataclass(frozen=True, slots=True)
class Packing:
    """What a `pack` step was told.

    Attributes:
        features: the name of each packed leaf and how many of its values a sequence holds; a single empty name stands
            for documents that are bare arrays.
        shared: whether all features have the same segments, so that one pair of segment ids and positions serves all.
        how: "best_fit" puts whole documents where they fit best, "split" lays them end to end and cuts.
        bins: how many sequences are open at once, for "best_fit".
        fill: the value of padding, for each feature.
        meta: the leaves that are carried along, a list of the documents' values for each sequence.
        long: whether documents longer than a sequence are split or dropped.
    """

    features: tuple[tuple[str, int], ...]
    shared: bool = True
    how: How = "best_fit"
    bins: int = 64
    fill: tuple[float, ...] = (0,)
    meta: tuple[str, ...] = ()
    long: Long = "split"
