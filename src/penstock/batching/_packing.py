"""How documents are packed into sequences of a fixed length: the description, without the doing."""

from typing import Literal, TypeAlias

from penstock._frozen import frozen

How: TypeAlias = Literal["best_fit", "split"]
Long: TypeAlias = Literal["split", "drop"]


@frozen
class Packing:
    """What a `pack` step was told.

    Attributes:
        features: the name of each packed leaf and how many of its values a sequence holds. A single empty name stands
            for documents of one length: bare arrays, or dicts all of whose leaves, but those of `meta`, are packed.
        how: "best_fit" puts whole documents where they fit best, "split" lays them end to end and cuts.
        bins: how many sequences are open at once, for "best_fit".
        fill: a feature's name and the value of its padding; an empty name stands for all others, whose default is 0.
        meta: the leaves that are carried along, a list of the documents' values for each sequence.
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
        """Whether all features have the same segments, so that one pair of segment ids and positions serves all."""
        return self.features[0][0] == ""

    @property
    def capacity(self) -> int | list[int]:
        """How many tokens a sequence holds; of each feature, where they have lengths of their own."""
        return self.features[0][1] if self.is_shared else [room for _, room in self.features]

    def padding(self, feature: str) -> float:
        """Return the value that pads a feature."""
        fills = dict(self.fill)
        return fills.get(feature, fills.get("", 0))
