"""The user's own fold: the definition's bytes after any resume, and a promise that is checked."""

import functools
import itertools
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.combiners import Delayed, Filled, Neighbours, Running
from tests.equivalence.definition import digest
from tests.equivalence.functions import keeps_two_of_three
from tests.equivalence.joins import Counter


def test_a_resume_adds_only_held_elements() -> None:
    """An object with `held` gets those elements again; an object without it gets all of the epoch."""
    added: list[int] = []

    def noted(number: int) -> int:
        added.append(number)
        return number

    for make, first in ((Neighbours, {58, 59}), (Delayed, {58}), (Running, {0})):
        dataset = ps.range(100).filter(lambda _: True).map(noted).combine(make)
        loader = ps.Loader(dataset)
        batches = iter(loader)
        while loader.position < 60:
            next(batches)
        resumed = ps.Loader(dataset)
        resumed.load_state_dict(loader.state_dict())
        added.clear()
        next(iter(resumed))
        assert added[0] in first


def test_nothing_is_flushed_where_nothing_is_held() -> None:
    """An object that holds nothing at the end of an epoch isn't flushed."""

    class Whole:
        held = 0

        def add(self, element: int) -> list[int]:
            return [element]

        def flush(self) -> list[int]:
            raise AssertionError("flushed")

    assert list(ps.range(3).combine(Whole)) == [0, 1, 2]
    assert list(ps.range(0).combine(Running)) == []


def test_many_elements_of_an_object_are_passed_on_before_others_are_made() -> None:
    """An object that returns 600 elements for each has at most 1,200 of them in memory, however many it could add."""
    added: list[int] = []

    class Many:
        held = 0

        def add(self, element: int) -> list[int]:
            added.append(element)
            return [element] * 600

        def flush(self) -> list[int]:
            return []

    dataset = ps.range(200, seed=1).window_shuffle(200).combine(Many).batch(4)
    with ps.Loader(dataset, num_workers=0) as loader:
        next(iter(loader))
    assert len(added) <= 2


def test_elements_of_one_list_have_random_streams_of_their_own() -> None:
    """Elements of one `add` or of `flush` draw from streams of their own."""

    class Twins:
        def add(self, element: int) -> list[int]:
            return [element, element]

        def flush(self) -> list[int]:
            return [0, 0]

    seeds = list(ps.range(9).combine(Twins).random_map(lambda _, seed: seed, rng="seed"))
    assert len(set(seeds)) == 20
    origins = list(ps.range(9).combine(Twins).map_with_origin(lambda _, origin: (origin.key, origin.ordinal)))
    assert origins[:4] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [key for key, _ in origins[-2:]] == [8, 8]


class Sums(NamedTuple):
    """An element."""

    first: int
    last: int


class Answers:
    """A combiner that returns given answers."""

    def __init__(self, given: Any = (), held: Any = 0) -> None:
        self.given = given
        self.answer = held
        self.count = 0

    @property
    def held(self) -> Any:
        """The given answer, after the first element."""
        return self.answer if self.count else 0

    def add(self, element: Any) -> Any:
        """Return the given answer."""
        del element
        self.count += 1
        return self.given

    def flush(self) -> Any:
        """Return the given answer."""
        return self.given


class Old:
    """A combiner that isn't new."""

    held = 3

    def add(self, element: Any) -> list[Any]:
        """Return the element."""
        return [element]

    def flush(self) -> list[Any]:
        """Return nothing."""
        return []


class Methodical(Filled):
    """A combiner whose `held` is a method."""

    def held(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number of waiting elements."""
        return len(self.waiting)


BROKEN: list[tuple[Any, str]] = [
    (lambda: 3, r"must return an object with add\(element\) and flush\(\); got 3"),
    (lambda: {1}, r"must return an object with add\(element\) and flush\(\); got \{1\}"),
    (Old, r"must return a new object each time, which holds nothing; this one has held=3"),
    (Methodical, r"held of step 'Methodical' must be a whole number .* got a method; put @property"),
    (lambda: Answers(None), r"add\(\) of step .* must return a list of elements; got a NoneType"),
    (lambda: Answers(np.zeros((2, 2))), "must return a list of elements; got a ndarray"),
    (lambda: Answers({1, 2}), "must return a list of elements; got a set"),
    (lambda: Answers(Sums(1, 2)), "must return a list of elements; got a Sums"),
    (lambda: Answers("ab"), r"add\(\) of step .* must return a list of elements; got a str"),
    (lambda: Answers(held=-1), r"held of step .* must be a whole number of at least 0; got -1"),
    (lambda: Answers(held=0.5), r"held of step .* must be a whole number of at least 0; got 0.5"),
    (lambda: Answers(held=2), r"needs no more than 1 after it; got 2\. Count the elements"),
]


class Silent(Delayed):
    """A combiner whose `flush` returns nothing."""

    def flush(self) -> Any:
        """Return None."""


def test_a_combiner_may_return_any_list() -> None:
    """A tuple, a deque and the values of a dict are lists of elements, too."""
    given: tuple[Any, ...] = (1, 2), deque([1, 2]), {1: "a", 2: "b"}.keys(), {"a": 1, "b": 2}.values()
    for each in given:
        assert list(ps.range(1).combine(functools.partial(Answers, each))) == [1, 2]


def test_an_object_that_breaks_the_rules_is_refused() -> None:
    """The error of the definition and of a loader names the step and the rule."""
    for make, message in BROKEN:
        dataset = ps.range(5).combine(make)
        for read in (dataset, ps.Loader(dataset)):
            with pytest.raises(ps.errors.GraphError, match=message):
                list(read)
    with pytest.raises(ps.errors.GraphError, match=r"flush\(\) of step .*Silent' must return a list") as caught:
        list(ps.Loader(ps.range(5).combine(Silent)))
    assert "key 4, the last element before flush()" in caught.value.__notes__[0]


class Forgets:
    """A combiner whose `held` is too small: it sums all elements, but counts those since the last sum."""

    def __init__(self) -> None:
        self.sum = 0
        self.since = 0

    @property
    def held(self) -> int:
        """The number of elements since the last sum."""
        return self.since

    def add(self, element: int) -> list[int]:
        """Return the sum at some elements."""
        self.sum += element
        self.since = 0 if self.sum % 4 == 1 else self.since + 1
        return [self.sum] if self.since % 2 else []

    def flush(self) -> list[int]:
        """Return the sum."""
        return [self.sum]


def test_a_broken_promise_is_an_error() -> None:
    """A resume fails if a new object holds another number of elements after the held ones were added."""
    dataset = ps.range(1, 40).combine(Forgets)
    loader = ps.Loader(dataset)
    errors: list[str] = []
    for _ in loader:
        resumed = ps.Loader(dataset)
        resumed.load_state_dict(loader.state_dict())
        try:
            next(iter(resumed), None)
        except ps.errors.StateError as error:
            errors.append(str(error))
    assert errors
    assert all("where the state was saved; a new one to which these were added has held=" in text for text in errors)


def test_check_finds_a_broken_promise() -> None:
    """`dataset.check()` resumes an object after each of its first elements, and one that depends on more fails."""
    calls = itertools.count()

    class Counting(Delayed):
        def add(self, element: int) -> list[int]:
            return [each + next(calls) for each in super().add(element)]

    with pytest.raises(ps.errors.GraphError, match=r"of step 'Forgets' in read.* doesn't resume: after 1 elements"):
        ps.range(1, 40).combine(Forgets).map(str).check()
    with pytest.raises(ps.errors.GraphError, match=r"Counting' in .* doesn't resume"):
        ps.range(1, 40).combine(Counting).check()


def test_check_accepts_kept_promises() -> None:
    """`check` accepts objects that hold nothing at times, a few elements, or all."""
    for make in (Filled, Neighbours, Running, Delayed):
        ps.range(40, seed=1).filter(keeps_two_of_three).combine(make).batch(2, merge=list).check()
    ps.stream(lambda: Counter(40)).combine(Forgets).check()  # no object above a stream is resumed


def test_a_class_that_gets_held_loads_older_states() -> None:
    """A state of an object without `held` adds all elements again, also to an object with it."""

    class Silent:
        def __init__(self) -> None:
            self.inner = Neighbours()
            self.add, self.flush = self.inner.add, self.inner.flush

    loader = ps.Loader(ps.range(20).combine(Silent, name="step"))
    first = [digest(element) for element in itertools.islice(loader, 5)]
    resumed = ps.Loader(ps.range(20).combine(Neighbours, name="step"))
    with pytest.warns(UserWarning, match="functions differ"):
        resumed.load_state_dict(loader.state_dict())
    assert first + [digest(element) for element in resumed] == [digest(each) for each in resumed]


class Failing(Delayed):
    """A combiner that fails at one element, and at the end."""

    def add(self, element: int) -> list[int]:
        """Fail at 6."""
        if element == 6:
            raise ValueError("six")
        return super().add(element)


def test_an_error_of_the_object_comes_after_earlier_elements() -> None:
    """Each retry raises it again, with the step and the element."""
    with ps.Loader(ps.range(10).combine(Failing), num_workers=1) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(ValueError, match="six") as caught:
                next(batches)
            assert "in step 'Failing' at epoch 0, position 6, key 6" in caught.value.__notes__


def test_a_stop_iteration_of_the_object_is_an_error() -> None:
    """A StopIteration would otherwise end the epoch silently."""

    class Stops(Delayed):
        def add(self, element: int) -> list[int]:
            if element == 2:
                raise StopIteration
            return super().add(element)

    for read in (ps.range(5).combine(Stops), ps.Loader(ps.range(5).combine(Stops))):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(read)


class Overlapping:
    """Gives parts of an array that overlap."""

    held = 0

    def add(self, array: Any) -> list[Any]:
        """Return views of the array."""
        return [array[:2], array[1:3], array[2:], array[:2]]

    def flush(self) -> list[Any]:
        """Return nothing."""
        return []


def plus_100(array: Any) -> Any:
    """Add 100 to an array in its place."""
    array += 100
    return array


def test_elements_of_one_list_share_no_memory() -> None:
    """A function that writes to its input changes no other element, whatever a loader computes at once."""
    rows = ps.range(3).map(lambda number: np.arange(number, number + 4)).combine(Overlapping).map(plus_100)
    wanted = [[100 + number + first + step for step in (0, 1)] for number in range(3) for first in (0, 1, 2, 0)]
    assert [row.tolist() for row in rows] == wanted
    assert [row.tolist() for row in ps.Loader(rows)] == wanted
    assert [row.tolist() for batch in ps.Loader(rows.batch(5)) for row in batch] == wanted
