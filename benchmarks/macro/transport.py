"""Nested arrays carried from a child process to this one: how fast, and what it costs either side.

The limit copies once, in the child, into slots that stay mapped on both sides. Every message is received and one byte
of each of its pages read, so that whoever must map pages pays for them; then it is dropped. What receiving costs when
nobody reads is measured apart. Children are started, and their messages made, before anything is timed.

It takes about 6 GB of memory, most of it slots of the largest messages, and twice that with the rivals; these also
want 2 GB in /dev/shm.
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
LARGE_MEGABYTES = 16  # from here on, copying is what counts
NUM_CHECKED = 4  # messages whose contents are compared: one more than are in flight

Open = Callable[[ExitStack, int], Carrier]  # from a scope that closes what is opened, and a message's bytes


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of messages, in MB of 10^6 bytes."""

    megabytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How messages are carried: in words, as which role, and what opens it."""

    name: str
    role: Role
    opened: Open


@dataclass(frozen=True, slots=True)
class Round:
    """What carrying some messages took."""

    messages: int
    num_bytes: int
    seconds: float
    consumer: Usage
    producer: Usage


def build(bench: Bench) -> Scenario:
    """Return the scenario: at every size the limit, a copy alone, ours and rivals, and the cost of receiving."""
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
        "nested arrays from a child process, messages of about so many MB; costs are per message",
        tuple(sorted(contestants, key=_megabytes)),
    )


def named(megabytes: int, way: str) -> str:
    """Return the name of the contestant that carries messages of a size in some way."""
    return f"{megabytes} MB: {way}"


def _megabytes(contestant: Contestant) -> int:
    return int(contestant.name.split()[0])


def carried(work: Work, scope: ExitStack, way: Way) -> tuple[Contestant, ...]:
    """Return the contestants that carry messages of every size in one way.

    Args:
        work: the sizes.
        scope: closes what is opened, when a contestant is first used.
        way: how messages are carried.
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
    """Return a contestant whose time is what receiving costs this process's cores, if nobody reads what came."""

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
    """Carry `count` messages here and return what that took on both sides; `read` says whether pages are touched."""
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
    """Return what a message cost either side: the median of the rounds."""

    def median(value: Callable[[Round], float]) -> float:
        return statistics.median(value(one) / one.messages for one in rounds)

    return {
        "consumer ms": median(lambda one: 1e3 * one.consumer.cpu_seconds),
        "faults": median(lambda one: one.consumer.minor_faults),
        "producer ms": median(lambda one: 1e3 * one.producer.cpu_seconds),
        "its faults": median(lambda one: one.producer.minor_faults),
    }


def _copy(megabytes: int) -> Contestant:
    """Return a contestant that copies a message within this process, into memory used before."""

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
