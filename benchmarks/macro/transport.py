"""Nested arrays from a child process to this one: the rate, and the cost on either side.

The limit copies once, in the child, into slots that stay mapped on both sides. Every message is received, one byte of
each of its pages is read, so that the time includes mapping the pages, and then it is dropped. The cost of receiving
without reading is measured separately. Children are started, and their messages made, before anything is timed.

The scenario takes about 6 GB of memory, most of it for slots of the largest messages, and twice that with the rivals;
these also need 2 GB in /dev/shm.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.carry.child import Carrier, open_carrier
from benchmarks.carry.messages import Message, digest, first_message, leaves, numbered, total_bytes, touch
from benchmarks.carry.pipe import open_copying_pipe, open_writing_pipe
from benchmarks.carry.ring import open_ring
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Output, Role, Scenario, Unit
from benchmarks.usage import Usage, usage

UNIT = Unit("MB/s", lambda measured: measured.amount / measured.seconds / 1e6, more_is_better=True)
LIMIT = "ring of memfd slots"
LARGE_MEGABYTES = 16  # from here on, the copy dominates
NUM_CHECKED = 4  # messages whose contents are compared: one more than are in flight

Open = Callable[[ExitStack, int], Carrier]  # takes a scope that closes it, and a message's bytes


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of messages, in MB of 10^6 bytes."""

    megabytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to carry messages: its name, its role, and the function that opens it."""

    name: str
    role: Role
    opened: Open


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of carrying some messages."""

    messages: int
    num_bytes: int
    seconds: float
    consumer: Usage
    producer: Usage


def build(bench: Bench) -> Scenario:
    """Return the scenario: at every size the limit, a copy alone, Penstock and rivals, and the cost of receiving."""
    work = Work((1,) if bench.smoke else (1, 19, 77, 300))
    ways = (
        Way(LIMIT, "limit", partial(open_carrier, open_ring)),
        Way("penstock, copied", "ours", partial(open_carrier, open_copying_pipe)),
        Way("penstock, written in place", "ours", partial(open_carrier, open_writing_pipe)),
    )
    contestants = (
        *(_copy(megabytes) for megabytes in work.megabytes),
        *(one for way in ways for one in carried(work, bench.scope, way)),
        *bench.rivals("transport", work),
    )
    return Scenario(
        "transport",
        "nested arrays from a child process, messages of about that many MB; costs are per message",
        tuple(sorted(contestants, key=_megabytes)),
    )


def named(megabytes: int, way: str) -> str:
    """Return the name of the contestant that carries messages of a size in a way."""
    return f"{megabytes} MB: {way}"


def _megabytes(contestant: Contestant) -> int:
    return int(contestant.name.split()[0])


def carried(work: Work, scope: ExitStack, way: Way) -> tuple[Contestant, ...]:
    """Return the contestants that carry messages of every size in one way.

    Args:
        work: the sizes.
        scope: closes what a contestant opens at its first use.
        way: the way to carry messages.
    """
    contestants: list[Contestant] = []
    for megabytes in work.megabytes:
        carrier = cache(partial(way.opened, scope, megabytes * 10**6))
        contestants.append(_carried(megabytes, way, carrier))
        if way.role != "rival":
            contestants.append(_received(megabytes, way, carrier))
    return tuple(contestants)


def _carried(megabytes: int, way: Way, carrier: Callable[[], Carrier]) -> Contestant:
    rounds: list[Round] = []

    def run(repeats: int) -> Measurement:
        rounds.append(carry(carrier(), repeats))
        return Measurement(rounds[-1].num_bytes, rounds[-1].seconds)

    return Contestant(
        named(megabytes, way.name),
        way.role,
        run,
        UNIT,
        against=() if way.role == "limit" else (named(megabytes, LIMIT),),
        goal=Goal("share", 0.9) if way.role == "ours" and megabytes >= LARGE_MEGABYTES else None,
        output=Output(f"messages of {megabytes} MB", lambda: map(digest, carrier().messages(NUM_CHECKED))),
        facts=lambda: costs(rounds),
    )


def _received(megabytes: int, way: Way, carrier: Callable[[], Carrier]) -> Contestant:
    """Return a contestant whose time is the CPU time of receiving in this process, without reading the message."""

    def run(repeats: int) -> Measurement:
        return Measurement(repeats, carry(carrier(), repeats, read=False).consumer.cpu_seconds)

    return Contestant(
        named(megabytes, f"{way.name}: CPU of receiving"),
        way.role,
        run,
        MILLISECONDS,
        against=() if way.role == "limit" else (named(megabytes, f"{LIMIT}: CPU of receiving"),),
        goal=Goal("value", 1) if way.role == "ours" else None,
    )


def carry(carrier: Carrier, count: int, *, read: bool = True) -> Round:
    """Carry `count` messages here, and return the cost on both sides; `read` touches every page."""
    num_bytes = 0

    def receive() -> None:
        nonlocal num_bytes
        for message in carrier.messages(count):
            num_bytes += total_bytes(message)
            if read:
                touch(message)
            del message  # its slot may be written again

    started = time.perf_counter()
    consumer = usage(receive)
    return Round(count, num_bytes, time.perf_counter() - started, consumer, carrier.sender_usage())


def costs(rounds: list[Round]) -> Mapping[str, float]:
    """Return the cost of a message on either side: the median of the rounds."""

    def median(value: Callable[[Round], float]) -> float:
        return statistics.median(value(one) / one.messages for one in rounds)

    return {
        "consumer ms": median(lambda one: 1e3 * one.consumer.cpu_seconds),
        "faults": median(lambda one: one.consumer.minor_faults),
        "producer ms": median(lambda one: 1e3 * one.producer.cpu_seconds),
        "its faults": median(lambda one: one.producer.minor_faults),
    }


def _copy(megabytes: int) -> Contestant:
    """Return a contestant that copies a message within this process, into reused memory."""

    @cache
    def arrays() -> tuple[Message, tuple[NDArray[np.generic], ...]]:
        message = first_message(megabytes * 10**6)
        return message, tuple(np.empty_like(leaf) for leaf in leaves(message))

    def copies(count: int) -> Iterator[tuple[NDArray[np.generic], ...]]:
        message, targets = arrays()
        for number in range(count):
            for target, leaf in zip(targets, leaves(numbered(message, number)), strict=True):
                np.copyto(target, leaf)
            yield targets

    def run(repeats: int) -> Measurement:
        num_bytes = total_bytes(arrays()[0])
        started = time.perf_counter()
        for _ in copies(repeats):
            pass
        return Measurement(repeats * num_bytes, time.perf_counter() - started)

    name, limit = named(megabytes, "a copy, in one process"), named(megabytes, LIMIT)
    return Contestant(name, "reference", run, UNIT, against=(limit,))
