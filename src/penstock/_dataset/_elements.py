"""The verbs of elements: the user's functions, of each element alone."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from penstock import _dataset, _storage
from penstock._dataset._order import chosen
from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._cache_identity import cache_identity
from penstock._graph._describe import function_name
from penstock._graph._jax_keys import need_jax
from penstock._graph._nodes import Cache, Filter, FlatMap, Map, OnError, Origin, RandomForm, Windows
from penstock._graph._verify import (
    need_finite,
    need_fixed_order,
    need_function,
    need_name,
    parse_bytes,
    verify_cached,
    verify_step,
)
from penstock.errors import UsageError
from penstock.sampling import Ragged, WindowTable

if TYPE_CHECKING:
    from penstock._dataset._dataset import Dataset

U = TypeVar("U")


class ElementVerbs(Verbs[T_co]):
    """Verbs that change each element, or leave some out."""

    __slots__ = ()

    def map(
        self, function: Callable[[T_co], U], *, name: str | None = None, on_error: OnError = "raise"
    ) -> "Dataset[U]":
        """Return `function(element)` of every element.

        Args:
            function: a function of the element alone. Called in blocks, on any worker, twice if need be. With
                `ps.PerWorker(make)` each worker makes its own, as for a decoder, a tokenizer or a connection.
            name: for messages; by default the function's own.
            on_error: what an exception does: "raise" it; "skip" the element, which makes the dataset ordered; or
                `ps.Substitute()` another position's element.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(3).map(lambda number: number * 10))
            [0, 10, 20]
        """
        need_function("map", function)
        return self._map(function, name, "none", on_error)

    @overload
    def random_map(
        self,
        function: "Callable[[T_co, np.random.Generator], U]",
        *,
        rng: Literal["generator"] = "generator",
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co, int], U],
        *,
        rng: Literal["seed"],
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co, Any], U],
        *,
        rng: Literal["jax"],
        globals: Literal[False] = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    @overload
    def random_map(
        self,
        function: Callable[[T_co], U],
        *,
        rng: Literal["generator"] = "generator",
        globals: Literal[True],
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[U]": ...
    def random_map(
        self,
        function: Callable[..., Any],
        *,
        rng: Literal["generator", "seed", "jax"] = "generator",
        globals: bool = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[Any]":
        """Return `function(element, rng)` of every element: random, and the same for any number of workers.

        The randomness is derived from (the dataset's seed, the step's name, epoch, position). Adding other steps does
        not change it; renaming this one does.

        Args:
            function: takes the element and a `numpy.random.Generator` that is valid only during the call.
            rng: "seed" hands over a 64-bit integer instead of a generator; "jax" a key for `jax.random`, on the host,
                where what is computed from it is computed too. Workers that are processes see no accelerator there.
            globals: call `function(element)` with `random`, NumPy's global generator and (if loaded) torch's seeded
                around the call, for augmentations that draw from these. Such a step never runs on threads.
            name: names the random stream; by default the function's own, with `#2` for its second use.
            on_error: as in `map`.

        Raises:
            UsageError: if an argument is none of these.
            MissingDependencyError: rng="jax" where JAX isn't installed.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.range(3, seed=1).random_map(lambda number, rng: number + rng.random())
            >>> list(dataset) == list(dataset)
            True
        """
        need_function("random_map", function)
        if rng not in ("generator", "seed", "jax"):
            raise UsageError(f'rng must be "generator", "seed" or "jax"; got rng={rng!r}')
        if globals and rng != "generator":
            raise UsageError(
                f"globals=True hands nothing to the function, so rng={rng!r} has no use. Leave one of them out."
            )
        if rng == "jax":
            need_jax()
            return self._map(function, name, "key", on_error)
        return self._map(function, name, "globals" if globals else rng, on_error)

    def map_with_origin(
        self, function: Callable[[T_co, Origin], U], *, name: str | None = None, on_error: OnError = "raise"
    ) -> "Dataset[U]":
        """Return `function(element, origin)`; the origin tells the element's position, key, epoch and seed.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(2).map_with_origin(lambda number, origin: (number, origin.epoch, origin.key)))
            [(0, 0, 0), (1, 0, 1)]
        """
        need_function("map_with_origin", function)
        return self._map(function, name, "origin", on_error)

    def filter(
        self,
        predicate: Callable[[T_co], object],
        *,
        name: str | None = None,
        index: "str | os.PathLike[str] | None" = None,
    ) -> "Dataset[T_co]":
        """Return the elements for which `predicate(element)` is true; they can only be read in order.

        With `index`, they have positions: the predicate is called for all elements now, on threads, and one bit each is
        kept in a file. The result has a length, can be shuffled, split and indexed, and reads nothing that is left out.
        Whoever calls it again, another rank or the next run, loads the file; while one process computes, others wait
        for it. Above a shuffle the elements are the same in every epoch, and reordered among themselves.

        Args:
            predicate: a function of the element alone. Called in blocks, on any worker, twice if need be.
            name: for messages; by default the function's own.
            index: the path of the file. Made where it is missing; computed again and replaced, with a warning, where it
                is damaged or the source, the order or the code of a function differs. That doesn't show what a function
                reads from files or calls in other packages: after such a change remove the file.

        Raises:
            UsageError: with `index`, if it names a file of another kind, or one that can't be written.
            GraphError: with `index`, if the dataset has no positions or no end, or if a step below gives other elements
                in another epoch: a random map, or one with `on_error=ps.Substitute()`. Filter below that step.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(6).filter(lambda number: number % 2))
            [1, 3, 5]

            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     odd = ps.range(6).filter(lambda number: number % 2, index=os.path.join(folder, "odd"))
            >>> len(odd), odd[1], sorted(odd.shuffle())
            (3, 3, [1, 3, 5])
        """
        need_function("filter", predicate)
        step_name = function_name(predicate) if name is None else need_name(name)
        if index is not None:
            bits = _dataset.filter_bits(self._node, predicate, step_name, index)
            return self._new(chosen(self._node, bits, f"filter({step_name}, indexed)"))
        return self._new(Filter(self._node, predicate, step_name))

    def flat_map(
        self,
        function: Callable[[T_co], Sequence[U]],
        *,
        counts: Sequence[int] | NDArray[np.integer] | None = None,
        name: str | None = None,
    ) -> "Dataset[U]":
        """Return the elements of the list that `function(element)` makes of each element, none or many.

        Args:
            function: returns a list of elements.
            counts: how many elements it makes of each, where that is known: the result can then be indexed, shuffled
                and cut into equal parts. Otherwise it is read in order.
            name: for messages; by default the function's own.

        Raises:
            UsageError: if there isn't a count for each element.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(4).flat_map(lambda number: [number] * number))
            [1, 2, 2, 3, 3, 3]
            >>> ps.range(4).flat_map(lambda number: [number] * number, counts=[0, 1, 2, 3])[-1]
            3
        """
        need_function("flat_map", function)
        step_name = self._step_name(function_name(function), name)
        if counts is None:
            return self._new(FlatMap(self._node, function, step_name))
        total = need_finite(self._node, "flat_map(…, counts=…)")
        need_fixed_order(self._node, "flat_map(…, counts=…)")
        known = np.asarray(counts)
        if known.shape != (total,):
            raise UsageError(f"counts must be one for each of the {total} elements; got shape {known.shape}")
        return self._new(FlatMap(self._node, function, step_name, Ragged(known)))

    def windows(
        self,
        length: int,
        stride: int = 1,
        *,
        lengths: Sequence[int] | NDArray[np.integer],
        partial: Literal["drop", "pad"] = "drop",
        mask: str | None = None,
    ) -> "Dataset[T_co]":
        """Return windows of `length` consecutive frames of each element, an episode with a leading axis of frames.

        Any window is found by its position; of a source with `read_spans` only the window's frames are read.

        Args:
            length: frames of a window.
            stride: frames between the starts of two windows of an episode.
            lengths: how many frames each element has, in order.
            partial: what becomes of a last window that runs past its episode: "drop" it, or "pad" it by repeating the
                last frame. With "pad" and a stride of at most `length` no frame is lost.
            mask: names a bool leaf of shape (length,) that is true for frames of data; for elements that are dicts.

        Raises:
            UsageError: if there isn't a length for each element.
            GraphError: if the order of the episodes changes from epoch to epoch; shuffle the windows instead.

        Example:
            >>> import numpy as np
            >>> import penstock as ps
            >>> episodes = [{"state": np.arange(5)}, {"state": np.arange(10, 12)}]
            >>> windows = ps.read(episodes).windows(3, 2, lengths=[5, 2], partial="pad")
            >>> [window["state"].tolist() for window in windows]
            [[0, 1, 2], [2, 3, 4], [10, 11, 11]]
        """
        total = need_finite(self._node, "windows()")
        need_fixed_order(self._node, "windows()")
        known = np.asarray(lengths)
        if known.shape != (total,):
            raise UsageError(f"lengths must be one for each of the {total} elements; got shape {known.shape}")
        if mask is not None:
            need_name(mask)
        return self._new(Windows(self._node, WindowTable(known, length, stride=stride, partial=partial), mask))

    def cache(
        self,
        where: "str | os.PathLike[str] | None" = None,
        *,
        size: int | str = "1GiB",
        version: str | None = None,
    ) -> "Dataset[T_co]":
        """Return the same elements, each kept once it was computed: in memory, or in a directory.

        When the cache is full it keeps what it has: elements come once an epoch, so replacing would only thrash.

        Args:
            where: a directory, shared by all processes that use it; None keeps elements in this process's memory. The
                directory is trusted like code. It is keyed by the source, the order and the functions' code: a change
                of any computes anew.
            size: bytes, or text such as "20GB".
            version: stands for the code of functions that can't be told apart, such as lambdas; change it when they do.

        Raises:
            GraphError: above a random step or an order that changes with the epoch, since every epoch would get the
                first one's; or a directory and a lambda without a version.

        Example:
            >>> import penstock as ps
            >>> calls = []
            >>> dataset = ps.range(3).map(lambda number: calls.append(number) or number).cache()
            >>> list(dataset), list(dataset), len(calls)
            ([0, 1, 2], [0, 1, 2], 3)
        """
        need_finite(self._node, "cache()")
        need_fixed_order(self._node, "cache()")
        verify_cached(self._node, on_disk=where is not None, version=version)
        limit = parse_bytes("size", size)
        identity = cache_identity(self._node, version)
        if where is None:
            return self._new(Cache(self._node, _storage.MemoryCache(limit, identity), "cache()"))
        store = _storage.DiskCache(os.fspath(where), identity, limit)
        store.open()
        return self._new(Cache(self._node, store, f"cache({os.fspath(where)!r})"))

    def _map(
        self, function: Callable[..., Any], name: str | None, form: RandomForm, on_error: OnError
    ) -> "Dataset[Any]":
        step_name, seed = self._random_step(function_name(function), name)
        step = Map(self._node, function, step_name, seed, form, on_error)
        verify_step(step)
        return self._new(step)
