"""The verbs of elements: the user's functions, of each element alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np

from penstock._dataset._verbs import T_co, Verbs
from penstock._graph._describe import function_name
from penstock._graph._nodes import Filter, Map, OnError, Origin, RandomForm
from penstock._graph._verify import need_function, need_name, verify_step
from penstock.errors import UsageError

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
            function: a function of the element alone. Called in blocks, on any worker, twice if need be.
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
        function: Callable[[T_co, np.random.Generator], U],
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
        rng: Literal["generator", "seed"] = "generator",
        globals: bool = False,
        name: str | None = None,
        on_error: OnError = "raise",
    ) -> "Dataset[Any]":
        """Return `function(element, rng)` of every element: random, and the same for any number of workers.

        The randomness is derived from (the dataset's seed, the step's name, epoch, position). Adding other steps does
        not change it; renaming this one does.

        Args:
            function: takes the element and a `numpy.random.Generator` that is valid only during the call.
            rng: "seed" hands over a 64-bit integer instead of a generator.
            globals: call `function(element)` with `random`, NumPy's global generator and (if loaded) torch's seeded
                around the call, for augmentations that draw from these. Such a step never runs on threads.
            name: names the random stream; by default the function's own, with `#2` for its second use.
            on_error: as in `map`.

        Raises:
            UsageError: if an argument is none of these.

        Example:
            >>> import penstock as ps
            >>> dataset = ps.range(3, seed=1).random_map(lambda number, rng: number + rng.random())
            >>> list(dataset) == list(dataset)
            True
        """
        need_function("random_map", function)
        if rng not in ("generator", "seed"):
            raise UsageError(f'rng must be "generator" or "seed"; got rng={rng!r}')
        if globals and rng != "generator":
            raise UsageError(
                f"globals=True hands nothing to the function, so rng={rng!r} has no use. Leave one of them out."
            )
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

    def filter(self, predicate: Callable[[T_co], object], *, name: str | None = None) -> "Dataset[T_co]":
        """Return the elements for which `predicate(element)` is true; they can only be read in order.

        Example:
            >>> import penstock as ps
            >>> list(ps.range(6).filter(lambda number: number % 2))
            [1, 3, 5]
        """
        need_function("filter", predicate)
        step_name = function_name(predicate) if name is None else need_name(name)
        return self._new(Filter(self._node, predicate, step_name))

    def _map(
        self, function: Callable[..., Any], name: str | None, form: RandomForm, on_error: OnError
    ) -> "Dataset[Any]":
        step_name, seed = self._random_step(function_name(function), name)
        step = Map(self._node, function, step_name, seed, form, on_error)
        verify_step(step)
        return self._new(step)
