"""The description of a packing of documents into sequences of a fixed length."""

from typing import Literal, TypeAlias

from penstock._frozen import frozen

How: TypeAlias = Literal["best_fit", "split"]
Long: TypeAlias = Literal["split", "drop"]


@frozen
class Packing:
    """The arguments of a `pack` step.

    Attributes:
        features: the name of each packed leaf and the number of its values in a sequence. A single empty name is for
            documents of one length: bare arrays, or dicts in which all leaves but those of `meta` are packed.
        how: "best_fit" puts whole documents where they fit best, "split" concatenates and cuts them.
        bins: the number of sequences that are open at once, for "best_fit".
        fill: a feature's name and the value of its padding; an empty name is for all others, whose default is 0.
        meta: the leaves that are kept unpacked, as a list of the documents' values for each sequence.
        long: whether documents longer than a sequence are split or dropped.
    """

    features: tuple[tuple[str, int], ...]
    how: How = "best_fit"
    bins: int = 64
    fill: tuple[tuple[str, float], ...] = ()
    meta: tuple[str, ...] = ()
    long: Long = "split"

    @property
    def is_shared(self) -> bool:
        """Whether all features have the same segments, and so one pair of segment ids and positions."""
        return self.features[0][0] == ""

    @property
    def capacity(self) -> int | list[int]:
        """The number of tokens in a sequence; a list for features with lengths of their own."""
        return self.features[0][1] if self.is_shared else [room for _, room in self.features]

    def padding(self, feature: str) -> float:
        """Return the value that pads a feature."""
        fills = dict(self.fill)
        return fills.get(feature, fills.get("", 0))
