"""Orders of a dataset, as pure functions from its (epoch, position) to (epoch, key) of its parent."""

from penstock.sampling._balance import Balance, balanced_length
from penstock.sampling._bits import Bits
from penstock.sampling._checked import CheckedSampler
from penstock.sampling._epochs import FixedEpoch, FixedOrder, Repeat
from penstock.sampling._mixture import Concatenation, MixtureRule, RoundRobin, WeightedMixture, integer_weights
from penstock.sampling._permutation import Permutation
from penstock.sampling._ragged import Ragged
from penstock.sampling._sampler import Sampler, ScalarSampler, apply_block
from penstock.sampling._seed_position import seed_position, seed_positions
from penstock.sampling._select import Select, Slice
from penstock.sampling._shuffle import Reorder, Shuffle
from penstock.sampling._split import split_counts
from penstock.sampling._weighted import WeightedDraws
from penstock.sampling._windows import WindowTable

__all__ = [
    "Balance",
    "Bits",
    "CheckedSampler",
    "Concatenation",
    "FixedEpoch",
    "FixedOrder",
    "MixtureRule",
    "Permutation",
    "Ragged",
    "Reorder",
    "Repeat",
    "RoundRobin",
    "Sampler",
    "ScalarSampler",
    "Select",
    "Shuffle",
    "Slice",
    "WeightedDraws",
    "WeightedMixture",
    "WindowTable",
    "apply_block",
    "balanced_length",
    "integer_weights",
    "seed_position",
    "seed_positions",
    "split_counts",
]
