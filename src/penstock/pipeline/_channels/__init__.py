"""Bounded buffers for items: between two stages, at branches, and from the last stage to the foreground."""

from penstock.pipeline._channels._branching import Join, JoinInput, PathSwitch, RoundRobin
from penstock.pipeline._channels._channel import NOTHING, Channel, Output, Waiters
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._channels._outlet import Mark, Outlet

__all__ = [
    "NOTHING",
    "Channel",
    "InOrder",
    "Join",
    "JoinInput",
    "Mark",
    "Outlet",
    "Output",
    "PathSwitch",
    "RoundRobin",
    "Waiters",
]
