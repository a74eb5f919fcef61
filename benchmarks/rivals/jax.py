"""JAX fed by hand, and by `penstock.jax`, which is here because only the rivals' environment has JAX."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import penstock.jax
from benchmarks.macro import jax_feed
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant

BY_HAND, BY_HAND_THREAD = "NumPy and jax.device_put", "NumPy and jax.device_put in a thread"
GRAIN, GRAIN_PUT = "Grain and jax.device_put", "Grain's device_put"  # those of rivals/grain.py
# Contestants without a thread are compared with those without a thread.
AGAINST = {"inline": (BY_HAND, GRAIN), "1 thread": (BY_HAND, BY_HAND_THREAD, GRAIN, GRAIN_PUT)}
AHEAD = 2  # batches that the thread has ready


def step_of(work: jax_feed.Work) -> Callable[[Any], object]:
    """Return a function that computes a step on a batch and waits for it."""
    weights, compute = jax.device_put(work.weights()), _compiled(work.turns)
    return lambda batch: compute(weights, batch).block_until_ready()


@cache
def _compiled(turns: int) -> Callable[[Any, Any], Any]:
    def compute(weights: Any, batch: Any) -> Any:  # noqa: ANN401 - arrays of a package that may be absent
        def turn(_: Any, total: Any) -> Any:  # noqa: ANN401 - see above
            return total + jnp.tanh(batch["x"] @ (weights + total)).sum()

        return jax.lax.fori_loop(0, turns, turn, jnp.float32(0)) + batch["label"].sum()

    compiled: Callable[[Any, Any], Any] = jax.jit(compute)
    return compiled


@cache
def sharding() -> Any:  # noqa: ANN401 - of a package that may be absent
    """Return the sharding of all contestants' batches: the rows over all devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def put(batch: Any) -> Any:  # noqa: ANN401 - see above
    """Return a batch of NumPy arrays as a batch of JAX arrays."""
    return jax.device_put(batch, sharding())


def _gathered(work: jax_feed.Work, order: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    while True:
        for first in range(0, len(order), work.batch_size):
            rows = order[first : first + work.batch_size]
            yield {name: column[rows] for name, column in work.columns.items()}


def _by_hand(work: jax_feed.Work, order: NDArray[np.int64], _: ExitStack) -> Iterator[Any]:
    return map(put, _gathered(work, order))


def _by_thread(work: jax_feed.Work, order: NDArray[np.int64], scope: ExitStack) -> Iterator[Any]:
    """Yield batches that a thread has placed ahead."""
    placed: queue.Queue[Any] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def place() -> None:
        for batch in _gathered(work, order):
            if stopped.is_set():
                break
            placed.put(put(batch))
        placed.put(None)

    thread = threading.Thread(target=place)

    def stop() -> None:
        stopped.set()
        for _ in iter(placed.get, None):  # the thread may wait for room
            pass
        thread.join()

    thread.start()
    scope.callback(stop)
    return iter(placed.get, None)


def _ours(work: jax_feed.Work, options: dict[str, Any], scope: ExitStack) -> Iterator[Any]:
    return iter(scope.enter_context(penstock.jax.Loader(work.dataset(), sharding(), **options)))


def _jax_feed(work: jax_feed.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    step, order = step_of(work), work.order()
    ways = (
        jax_feed.Way(BY_HAND, "limit", partial(_by_hand, work, order), step),
        jax_feed.Way(BY_HAND_THREAD, "reference", partial(_by_thread, work, order), step),
        *(
            jax_feed.Way(f"penstock.jax {place}", "ours", partial(_ours, work, options), step, AGAINST[place])
            for place, options in jax_feed.PLACES
        ),
    )
    return tuple(jax_feed.contestant(scope, work, way) for way in ways)


CONTESTANTS: dict[str, Contestants] = {"jax-feed": _jax_feed}
