"""Orders of a dataset, as pure functions from its (epoch, position) to (epoch, key) of its parent."""

from penstock.sampling._arguments import check_int64 as check_int64
from penstock.sampling._balance import Balance, balanced_length
from penstock.sampling._block_shuffle import BlockShuffle
from penstock.sampling._epochs import FixedEpoch, FixedOrder, Repeat
from penstock.sampling._mixture import Concatenation, MixtureRule, RoundRobin, WeightedMixture
from penstock.sampling._mixture_order import integer_weights
from penstock.sampling._parts import Bits, Select, Slice, split_counts
from penstock.sampling._permutation import Permutation, Reorder, Shuffle
from penstock.sampling._ragged import Ragged, WindowTable
from penstock.sampling._sampler import CheckedSampler, Sampler, ScalarSampler, apply_block
from penstock.sampling._sampler import OrderFacts as OrderFacts
from penstock.sampling._sampler import OwnSampler as OwnSampler
from penstock.sampling._sampler import check_sampler as check_sampler
from penstock.sampling._sampler import facts_of as facts_of
from penstock.sampling._sampler import reach_of as reach_of
from penstock.sampling._seed_position import seed_position, seed_positions
from penstock.sampling._weighted import WeightedDraws

__all__ = [
    "Balance",
    "Bits",
    "BlockShuffle",
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
