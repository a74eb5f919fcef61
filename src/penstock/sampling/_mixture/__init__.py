"""Mixtures of several datasets: a rule maps a position to a component and a position in it."""

from penstock.sampling._mixture._concatenation import Concatenation
from penstock.sampling._mixture._round_robin import RoundRobin
from penstock.sampling._mixture._rule import MixtureRule
from penstock.sampling._mixture._weighted import WeightedMixture
from penstock.sampling._mixture._weights import integer_weights

__all__ = ["Concatenation", "MixtureRule", "RoundRobin", "WeightedMixture", "integer_weights"]
