"""The states of a DataLoader, and how it resumes from them.

For an iterable dataset, a state holds the dataset's own state in each worker, after the worker's last delivered batch
(`StreamsProgress`). The rest of this text is about map-style datasets (`Epoch`, `Saved`).

The problem: a torch sampler is an iterator without a state. Its order comes from its own generator, from torch's global
one, or from a seed and an epoch that a framework sets. The loader must resume without reading the earlier batches, and
must leave the generators as an uninterrupted epoch would leave them, so that later epochs match as well.

The solution: a state inside an epoch holds the number of delivered batches and the inputs of the epoch's order: the
state of each generator when the sampler first drew from it, or the sampler's epoch. A resumed loader restores these
inputs, makes the order again and skips the delivered batches; no record is read for that. A state of an epoch's start
holds the states of the samplers' generators and, if the next epoch's base seed was drawn already, that seed. Samplers
are nested: torch's sampler of batches is above one of indices, or above a framework's sampler that takes its rank's
part. Each may have a generator or an epoch of its own.

Rejected: to save the remaining indices, which take megabytes for a large dataset; and to pickle the sampler, which
would tie a state to the classes of a framework's version.

Invariants:
  - Resuming leaves torch's global generator as it was: the saved epoch drew its numbers from it when it began.
  - A state is rejected unless the sampler has the same classes and sizes, since the order would differ; so it is if
    indices, weights or lists differ, long ones in a sample. These are compared only on the rank that saved the state:
    the ranks of a program may have lists of their own, and resume from the state of one.
  - After the last batch the state is that of the next epoch's start; a sampler that draws once more at its end, as
    RandomSampler does, is read to that end first.
  - Only the lengths of torch's samplers are trusted. At the length of another one, one more batch is drawn, to see
    whether there is one; it stays the next.
"""

import base64
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from typing import Any, Final, Self, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock._caught import Caught
from penstock._only_next import only_next
from penstock.errors import StateError
from penstock.sources import content_digest

_VERSION: Final = 1
_NAME: Final = "penstock.torch.DataLoader"
_MAX_BATCHES: Final = 1 << 40
_MAX_STREAM_BATCHES: Final = 1 << 62
_PARTS: Final = 3  # the length of a stream's entry in a state
_MAX_NESTED: Final = 8  # samplers; a bound in case a sampler refers to itself
_LISTS: Final[tuple[type[Any], ...]] = (list, tuple, range)
_EXACT: Final[tuple[type[Any], ...]] = (  # their lengths are true
    *(SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler),
    *_LISTS,
)
_SHAPE: Final = (  # attributes of samplers on which an order depends: torch's, and Accelerate's
    *("batch_size", "drop_last", "num_samples", "num_replicas", "seed", "replacement"),
    *("num_processes", "split_batches", "even_batches", "initial_seed"),
)
_VALUES: Final[tuple[tuple[type[Any], str], ...]] = (
    (SubsetRandomSampler, "indices"),
    (WeightedRandomSampler, "weights"),
)
_SIZED: Final[tuple[tuple[type[Any], str], ...]] = (
    *_VALUES,
    (RandomSampler, "data_source"),
    (DistributedSampler, "dataset"),
    (DistributedSampler, "shuffle"),  # true or false
)
_SAMPLE: Final = 200  # values of a digest
State = dict[str, object]


class Epoch:
    """The indices of one epoch, or of the rest of one, in the sampler's order.

    Args:
        sampler: the loader's sampler of indices, or of lists of them; not iterated yet.
        saved: the state to resume from; None begins a new epoch.
        counts_drawn: whether each batch is delivered as soon as its indices are drawn.

    Attributes:
        reached: the number of delivered batches of the epoch.
        base_seed: the epoch's base seed, where workers compute the items.
        number: the number of the epoch, counted since the base seed was drawn.
        has_ended: whether all batches were delivered.
        keeps_seed: whether the next epoch has the same base seed, since the same workers compute it.
    """

    def __init__(self, sampler: object, saved: "Saved | None", *, counts_drawn: bool) -> None:
        self.keeps_seed = False
        self.reached = 0 if saved is None else saved.reached
        self.base_seed = 0 if saved is None else saved.base_seed
        self.number = 0 if saved is None else saved.number
        self.has_ended = False
        self._counts_drawn = counts_drawn
        self._sampler = sampler
        self._is_resumed = saved is not None and saved.is_inside
        at_iter = _global_state(sampler, "global_at_iter")
        self._made_from = saved.made_from if saved is not None and saved.is_inside else at_iter
        self._indices: Iterator[object] = iter(())
        self._has_begun = False
        self._drawn = self.reached  # the number of batches that were drawn
        self._is_drawn_out = False

    def over(self, indices: Iterator[object]) -> "Epoch":
        """Take the sampler's iterator, and return this."""
        self._indices = only_next(indices)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        if not self._has_begun:
            self._begin()
        try:
            drawn = next(self._indices)
        except StopIteration:
            self._is_drawn_out = True
            self.has_ended = self.has_ended or self._counts_drawn
            raise
        self._drawn += 1
        self.reached += self._counts_drawn
        return drawn

    def _begin(self) -> None:
        self._has_begun = True
        if not self._is_resumed:
            self._made_from = {**self._made_from, **_made_from(self._sampler)}
        else:
            self._indices = _rest(self._sampler, self._made_from, self.reached)

    def state(self, generator: "torch.Generator | None" = None) -> State:
        """Return the epoch's state; after its last batch, the state of the next epoch's start.

        Args:
            generator: the loader's own, which the loader's state holds in an entry of its own.
        """
        if not self._is_resumed and not self._has_begun:
            return {**start_state(self._sampler, generator), "base_seed": self.base_seed, "number": self.number}
        if self._is_over():
            seed: State = {"base_seed": self.base_seed, "number": self.number + 1} if self.keeps_seed else {}
            return {**start_state(self._sampler, generator), **seed}
        return {
            **empty_state(),
            "reached": self.reached,
            "base_seed": self.base_seed,
            "number": self.number,
            "made_from": self._made_from,
            **_shape(self._sampler),
            **_sizes(self._sampler),
            **_contents(self._sampler),
        }

    def _is_over(self) -> bool:
        """Return whether all batches were delivered; where the sampler's length says so, see whether it is at its end.

        RandomSampler draws once more at its end, as the next call of `next` would have it do.
        """
        length = _length(self._sampler)
        if self.has_ended or length is None or self.reached < length:
            return self.has_ended
        is_exact = _has_exact_length(self._sampler)
        if self._drawn == self.reached and (not is_exact or any(map(_own, _nest(self._sampler)))):
            self._look_ahead()
        return is_exact or (self._is_drawn_out and self._drawn == self.reached)

    def _look_ahead(self) -> None:
        """Draw one more batch, which stays the next one; an exception of the sampler is raised in its place."""
        if not self._has_begun:
            self._begin()
        further: list[object] = []
        with Caught(Exception) as caught:
            further += islice(self._indices, 1)
            self._is_drawn_out = not further
        self._indices = chain(further if caught.error is None else _raising(caught.taken()), self._indices)


def _raising(error: BaseException) -> Iterator[object]:
    yield from ()
    raise error


class Saved:
    """A state that was loaded.

    Args:
        state: the value that `state_dict` returned.
        sampler: the loader's sampler.
        generator: the loader's own generator.

    Attributes:
        state: a copy of the value.
        is_inside: whether it was saved inside an epoch.
        has_seed: whether it has the base seed of the epoch that it resumes or begins.
        generator: the state of the loader's own generator; None if it has none.
        reached: the number of delivered batches of the epoch.
        base_seed: the epoch's base seed; 0 without one.
        number: the number of the epoch, counted since the base seed was drawn.
        made_from: the inputs of the epoch's order: the states of the samplers' own generators ("own"), the samplers'
            epochs ("epochs"), the seed of torch's RandomSampler ("seed"), and, for samplers whose inputs are unknown,
            the states of torch's global generator when `iter` was called ("global_at_iter") and when the first index
            was requested ("global_at_next").

    Raises:
        StateError: it is not a state, or belongs to another order.
    """

    def __init__(self, state: object, sampler: object, generator: "torch.Generator | None" = None) -> None:
        given = checked_state(state)
        self.state = dict(given)
        self.is_inside = "reached" in given
        self.has_seed = "base_seed" in given
        self.generator = saved_generator(given, generator)
        self.reached = whole_number(given, "reached", 0, _MAX_BATCHES)
        self.base_seed = _base_seed(given)
        self.number = whole_number(given, "number", 0, 1 << 31)
        self.made_from = _checked_made_from(given.get("made_from", {}))
        if not self.is_inside:
            _need_generators(sampler, self.made_from, is_inside=False)
            return
        _check_order(sampler, given)
        length = _length(sampler)
        if length is not None and self.reached > length and _has_exact_length(sampler):
            raise StateError(
                f"this state counts {self.reached} delivered batches of an epoch that has {length} here. Load it into "
                "a loader of the same dataset"
            )
        _need_generators(sampler, self.made_from, is_inside=True)
        _set_epochs(sampler, self.made_from)


def _check_order(sampler: object, given: Mapping[str, Any]) -> None:
    """Check that a sampler gives the order of a state.

    Raises:
        StateError: it gives another one.
    """
    contents = _contents(sampler)
    others = {**_sizes(sampler), **(contents if given.get("rank") == contents.get("rank") else {})}
    known = {name: value for name, value in others.items() if name in given}  # older versions saved none
    for name, own in {**_shape(sampler), **known}.items():
        if not isinstance(given.get(name), str | bool | None):
            whole_number(given, name, -(1 << 63), (1 << 64) - 1)
        if given.get(name) != own:
            raise StateError(
                f"this state was saved inside an epoch of a loader whose {name} is {given.get(name)!r}; here it is "
                f"{own!r}, so that the order would differ. Load it into a loader with the same {name}, or load a "
                "state that was saved at an epoch's end"
            )


def checked_state(state: object) -> Mapping[str, Any]:
    """Return a state, after checking that a loader has saved it.

    Raises:
        StateError: it isn't the state of a loader of this class and version.
    """
    brief = _brief(state)
    given: Mapping[str, Any] = cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else {}
    if given.get("of") != _NAME or given.get("version") != _VERSION or not isinstance(given.get("lost", ""), str):
        raise StateError(f"a state must come from state_dict() of a {_NAME}, of version {_VERSION}; got {brief}")
    return given


def whole_number(given: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return a number of a state; 0 if the entry is missing.

    Raises:
        StateError: it isn't a whole number from `least` to `most`.
    """
    value = given.get(name, 0)
    if type(value) is not int or not least <= value <= most:
        raise damaged(f"{name} must be a whole number from {least} to {most}")
    return value


def _base_seed(given: Mapping[str, Any]) -> int:
    return whole_number(given, "base_seed", -(1 << 63), (1 << 64) - 1)


def damaged(rule: str) -> StateError:
    """Return the error for a state that breaks a rule, so that no loader can have saved it."""
    return StateError(f"this state is damaged: {rule}. Load a value that state_dict() of a {_NAME} returned")


def _checked_made_from(value: object) -> dict[str, Any]:
    """Return the inputs of an epoch's order, after checking the type of each."""
    if not isinstance(value, dict):
        raise damaged("made_from must be a dict")
    found = cast("dict[str, Any]", value)
    for name, part in found.items():
        if name in ("global_at_iter", "global_at_next"):
            _check_generator(part)
        elif name == "seed":
            whole_number(found, name, 0, (1 << 64) - 1)
        elif name in ("own", "epochs") and isinstance(part, list):
            _check_parts(name, cast("list[object]", part))
        else:
            raise damaged("made_from has other parts")
    return found


def _check_parts(name: str, parts: list[object]) -> None:
    for part in parts:
        if name == "own" and part is not None:
            _check_generator(part)
        elif part is not None:
            whole_number({name: part}, name, 0, 1 << 31)


def _check_generator(text: object) -> None:
    """Check that a text is the state of a generator. Only a state as long as those of the CPU is checked as a whole.

    Raises:
        StateError: it is not a state of a generator.
    """
    try:
        words = base64.b64decode(cast("str", text), validate=True)
        if len(words) == len(base64.b64decode(encoded(torch.Generator()))):
            set_generator(torch.Generator(), cast("str", text))
    except (TypeError, ValueError, RuntimeError) as error:
        raise damaged(f"the state of a generator is invalid ({error})") from error
    if not words:
        raise damaged("the state of a generator is empty")


def empty_state() -> State:
    """Return the state of a loader at an epoch's start, without generators."""
    return {"of": _NAME, "version": _VERSION}


def start_state(sampler: object, generator: "torch.Generator | None") -> State:
    """Return the state of a loader at an epoch's start, with the generators that samplers don't share with the loader.

    Args:
        sampler: the loader's sampler.
        generator: the loader's own, which the loader's state holds in an entry of its own.
    """
    generators = [None if own is generator else own for own in map(_own, _nest(sampler))]
    if not any(own is not None for own in generators):
        return empty_state()
    return {**empty_state(), "made_from": {"own": [None if own is None else encoded(own) for own in generators]}}


@contextmanager
def generators_restored(loader: object) -> Generator[None]:
    """Restore torch's generator, and a loader's own, at the end: the saved epoch drew from them when it began."""
    own: object = getattr(loader, "generator", None)
    generators = [torch.default_generator, *([own] if isinstance(own, torch.Generator) else [])]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def saved_generator(given: Mapping[str, Any], generator: "torch.Generator | None") -> str | None:
    """Return the state of the loader's own generator in a loader's state; None if it has none.

    Args:
        given: the loader's state.
        generator: the generator that would be set to it.

    Raises:
        StateError: it is damaged, or of a generator on a device of another kind.
    """
    text: str | None = given.get("generator")
    if text is not None:
        _check_generator(text)
        if generator is not None:
            _check_fits(generator, text)
    return text


def encoded(generator: "torch.Generator") -> str:
    """Return a generator's state as text."""
    words: Any = generator.get_state()
    return base64.b64encode(words.numpy().tobytes()).decode()


def set_generator(generator: "torch.Generator", text: str) -> None:
    """Set a generator to a state that was encoded."""
    words = bytearray(base64.b64decode(text))
    generator.set_state(torch.frombuffer(words, dtype=torch.uint8))


def parts(sampler: object) -> tuple[int, ...]:
    """Return the numbers of the parts that samplers take for a rank; the seeds of the rank's items depend on them.

    Ranks that share a replica of the model take the same part, so they draw the same random numbers. The attributes are
    those of torch's and Accelerate's samplers.
    """
    named = (getattr(each, name, None) for each in _nest(sampler) for name in ("rank", "process_index"))
    return tuple(part for part in named if isinstance(part, int))


def rank_samplers(sampler: object) -> list[str]:
    """Return the names of the samplers that take one of several parts of the indices."""
    counted = [
        (each, getattr(each, name, None)) for each in _nest(sampler) for name in ("num_replicas", "num_processes")
    ]
    return [type(each).__name__ for each, count in counted if isinstance(count, int) and count > 1]


def _length(sampler: object) -> int | None:
    try:
        return len(cast("Sized", sampler))
    except (TypeError, NotImplementedError):  # from this sampler, or from the sampler below
        return None


def _has_exact_length(sampler: object) -> bool:
    """Return whether the length of a sampler, which has one, is the number of its batches or indices."""
    return type(_base(sampler)) in _EXACT


def _base(sampler: object) -> object:
    """Return the sampler of indices below torch's sampler of batches."""
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def _nest(sampler: object) -> list[Any]:
    """Return a sampler and the samplers below it, by the attributes of torch, Accelerate and Lightning."""
    nest: list[Any] = []
    below: object = sampler
    while below is not None and len(nest) < _MAX_NESTED:
        nest.append(below)
        named = (getattr(below, "batch_sampler", None), getattr(below, "sampler", None), _wrapped(below))
        below = next((each for each in named if each is not None), None)
    return nest


def _wrapped(sampler: object) -> object:
    """Return the sampler that Lightning passed to torch's sampler of ranks as a dataset."""
    given: object = getattr(sampler, "dataset", None)
    return getattr(given, "_sampler", None)


def _is_known(sampler: object) -> bool:
    """Return whether the inputs of a sampler's order are known: its own generator, its epoch, or nothing."""
    base: Any = _base(sampler)
    own = _own(base) is not None and len(_nest(base)) == 1
    return own or type(base) in (RandomSampler, SequentialSampler, DistributedSampler)


def _global_state(sampler: object, name: str) -> State:
    """Return the state of torch's global generator, under a name, for a sampler whose inputs are unknown."""
    return {} if _is_known(sampler) else {name: encoded(torch.default_generator)}


def _made_from(sampler: object) -> State:
    """Return the inputs of the order that a sampler is about to make."""
    found = _global_state(sampler, "global_at_next")
    nest = _nest(sampler)
    epochs = [each.epoch if _has_epoch(each) else None for each in nest]
    if any(epoch is not None for epoch in epochs):
        found["epochs"] = epochs
    own = [None if generator is None else encoded(generator) for generator in map(_own, nest)]
    if any(own):
        found["own"] = own
    elif type(_base(sampler)) is RandomSampler:
        found["seed"] = _next_seed()
    return found


def freely_drawn(sampler: object) -> int:
    """Return how many of an epoch's batches, or indices, may be drawn at any time, since no program can tell when.

    These are all but the last one where the samplers are torch's own, and draw their order when the first index is
    requested; a further draw of RandomSampler, at its end, may come with the last batch.
    """
    given: Any = sampler
    base: Any = given.sampler if type(sampler) is BatchSampler else given
    if type(base) is RandomSampler:
        is_free = not base.replacement and base.num_samples <= len(base.data_source)
    else:
        is_free = type(base) in (SequentialSampler, DistributedSampler)
    return max(len(given) - 1, 0) if is_free else 0


def _own(sampler: object) -> "torch.Generator | None":
    """Return a sampler's own generator."""
    generator: object = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def _has_epoch(sampler: object) -> bool:
    return hasattr(sampler, "set_epoch") and isinstance(getattr(sampler, "epoch", None), int)


def _set_epochs(sampler: object, made_from: Mapping[str, Any]) -> None:
    """Set the samplers to the epoch that was saved.

    Raises:
        StateError: a sampler has no epochs; then none is set.
    """
    pairs = zip(_nest(sampler), made_from.get("epochs", ()), strict=False)
    saved = [(each, epoch) for each, epoch in pairs if epoch is not None]
    for each, epoch in saved:
        if not hasattr(each, "set_epoch"):
            raise StateError(
                f"this state has epoch {epoch} of a sampler that is a {type(each).__name__} here, which has no "
                "set_epoch. Load it into a loader with the same samplers"
            )
    for each, epoch in saved:
        each.set_epoch(epoch)


def _saved_generators(samplers: Sequence[Any], made_from: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield samplers with the saved states of their generators, matched from the innermost sampler outwards."""
    own: list[str | None] = made_from.get("own", [])
    for each, text in zip(reversed(samplers), reversed(own), strict=False):
        if text is not None:
            yield each, text


def _need_generators(sampler: object, made_from: Mapping[str, Any], *, is_inside: bool) -> None:
    """Check that samplers have the generators of a state, and that these can be set to it.

    Raises:
        StateError: a generator is missing, or can't be set.
    """
    for each, text in _saved_generators(_nest(sampler), made_from):
        own = _own(each)
        if own is not None:
            _check_fits(own, text)
        elif (is_inside or hasattr(each, "generator")) and not _has_epoch(each):
            raise StateError(
                f"this state was saved by a loader whose order a {type(each).__qualname__} drew from a generator "
                "of its own; here it has none. Pass one, as in generator=torch.Generator()"
            )


def _check_fits(generator: "torch.Generator", text: str) -> None:
    """Check that a generator can be set to a state.

    Raises:
        StateError: the state is damaged, or of a generator on a device of another kind.
    """
    try:
        set_generator(torch.Generator(generator.device), text)
    except (TypeError, ValueError, RuntimeError) as error:
        raise damaged(f"a generator on {generator.device} can't take a generator's state ({error})") from error


def set_generators(sampler: object, made_from: Mapping[str, Any]) -> None:
    """Set the generators of samplers to the states that were saved."""
    for each, text in _saved_generators(_nest(sampler), made_from):
        own = _own(each)
        if own is not None:
            set_generator(own, text)


def _next_seed() -> int:
    """Return the seed that a RandomSampler is about to draw from torch's global generator."""
    copied = torch.Generator()
    copied.set_state(torch.get_rng_state())
    drawn: Any = torch.empty((), dtype=torch.int64).random_(generator=copied)
    return int(drawn.item())


def _rest(sampler: object, made_from: Mapping[str, Any], reached: int) -> Iterator[object]:
    """Return the rest of an epoch's order, which is made again. Torch's generator keeps its state."""
    base: Any = _base(sampler)
    is_batched = base is not sampler
    if "seed" in made_from:
        base = copy.copy(base)
        base.generator = torch.Generator().manual_seed(made_from["seed"])
    _set_epochs(sampler, made_from)  # again, since a framework may have set the epoch that it counts
    set_generators(sampler, made_from)
    now = torch.get_rng_state()
    try:
        if "global_at_iter" in made_from:
            set_generator(torch.default_generator, made_from["global_at_iter"])
        indices = _batched(cast("BatchSampler", sampler), base, reached) if is_batched else only_next(iter(base))
        if "global_at_next" in made_from:
            set_generator(torch.default_generator, made_from["global_at_next"])
        for _ in islice(indices, 0 if is_batched else reached):
            pass
        first = list(islice(indices, 1))  # now, while the generator has the saved state
        return chain(first, indices)
    finally:
        torch.set_rng_state(now)


def _batched(sampler: "BatchSampler", indices: object, reached: int) -> Iterator[object]:
    """Return the rest of the batches; the indices before them are skipped, at nanoseconds each."""
    base: Any = indices
    skipped = reached * sampler.batch_size
    rest: Iterable[Any] = range(skipped, len(base)) if type(base) is SequentialSampler else _after(base, skipped)
    return iter(BatchSampler(cast("Any", rest), sampler.batch_size, sampler.drop_last))


def _after(sampler: Iterable[Any], count: int) -> Iterator[Any]:
    """Yield the indices after the first `count`; iterate over the sampler only on request, as torch's sampler does."""
    indices = only_next(iter(sampler))
    next(islice(indices, count, count), None)
    yield from indices


def _shape(sampler: object) -> State:
    """Return the properties of a sampler that an order depends on, except the rank."""
    nest = _nest(sampler)
    inner = nest[1:] if type(sampler) is BatchSampler else nest
    shape: State = {"sampler": " of ".join(type(each).__qualname__ for each in inner)}
    for each, name in product(reversed(nest), _SHAPE):  # the outermost sampler overrides the others
        value: object = getattr(each, name, None)
        if isinstance(value, int):
            shape[name] = value
    return shape


def _sizes(sampler: object) -> State:
    """Return the lengths on which the orders of torch's samplers depend, and whether they shuffle."""
    sizes: State = {}
    for each in reversed(_nest(sampler)):
        for name in (name for kind, name in _SIZED if issubclass(type(each), kind)):
            value: object = getattr(each, name, None)
            if isinstance(value, bool):
                sizes[name] = value
            elif (length := _length(value)) is not None:
                sizes[f"len({name})"] = length
    return sizes


def _contents(sampler: object) -> State:
    """Return the digests of indices, weights and lists that torch's samplers are made of, and the rank."""
    digests: State = {}
    for each in reversed(_nest(sampler)):
        if type(each) in _LISTS:
            digests["digest of sampler"] = _digest(each)
        for name in (name for kind, name in _VALUES if type(each) is kind):
            digests[f"digest of {name}"] = _digest(getattr(each, name))
    return {"rank": _rank(), **digests} if digests else {}


def _digest(values: Sequence[Any]) -> str:
    """Return the digest of values, of many only a sample; it takes the same time for any number of them."""
    count = len(values)
    found = [values[place] for place in range(0, count, max(-(-count // _SAMPLE), 1))]
    return content_digest([count, *(value.tolist() if hasattr(value, "tolist") else value for value in found)])


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _brief(state: object) -> str:
    return type(state).__name__ if not isinstance(state, Mapping) else "one with other entries"


@dataclass
class StreamProgress:
    """The progress in one stream.

    Attributes:
        number: the number of its next batch.
        state: the dataset's state after the batch delivered last; None before the first one, or if it has no state.
        is_over: whether the stream has ended.
    """

    number: int = 0
    state: object = None
    is_over: bool = False


@dataclass
class StreamsProgress:
    """The progress in all streams of an epoch.

    Attributes:
        streams: the progress of each worker's stream; empty at an epoch's start, for any number of workers.
        turn: the number after that of the worker that delivered last: from it on, the first worker whose stream has
            not ended delivers next, and worker 0 follows the last one.
        base_seed: the base seed of the workers, from which a dataset may have drawn its order; None if a state of an
            earlier version lacks it.
        keeps_seed: whether the next epoch has the same base seed, since the same workers compute it.
    """

    streams: list[StreamProgress]
    turn: int
    base_seed: int | None
    keeps_seed: bool = False

    def copy(self) -> "StreamsProgress":
        """Return a copy."""
        return replace(self, streams=[replace(each) for each in self.streams])

    def go_to(self, other: "StreamsProgress") -> None:
        """Set the progress to another one, of as many streams."""
        self.turn, self.base_seed = other.turn, other.base_seed
        for each, wanted in zip(self.streams, other.streams, strict=True):
            each.number, each.state, each.is_over = wanted.number, wanted.state, wanted.is_over

    def state(self) -> State:
        """Return the state: a JSON value if the dataset's own states are JSON values."""
        if all(each.is_over for each in self.streams):
            return {**empty_state(), "base_seed": self.base_seed} if self.keeps_seed else empty_state()
        streams = [[each.number, each.state, each.is_over] for each in self.streams]
        return {**empty_state(), "streams": streams, "turn": self.turn, "base_seed": self.base_seed}


class Pass:
    """One pass over an iterable dataset in the consumer's thread.

    The dataset's `state_dict` describes this pass once an element was read; before, it may describe the last pass.

    Args:
        saved: the dataset's state from which the pass resumes; None for its beginning.

    Attributes:
        saved: the state of the argument.
        has_begun: whether an element was read.
        has_ended: whether all elements were read.
    """

    def __init__(self, saved: object) -> None:
        self.saved = saved
        self.has_begun = False
        self.has_ended = False
        self._elements: Iterator[object] = iter(())

    def over(self, elements: Iterator[object]) -> "Pass":
        """Take the dataset's iterator, and return this."""
        self._elements = elements
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        try:
            element = next(self._elements)
        except StopIteration:
            self.has_ended = True
            raise
        self.has_begun = True
        return element


def saved_progress(state: object, num_workers: int) -> StreamsProgress | None:
    """Return the progress that was saved; None for the state of an epoch's start, unless it has the base seed.

    Raises:
        StateError: it is not a state, or belongs to another number of workers.
    """
    given: Mapping[str, Any] = checked_state(state)
    base_seed = _base_seed(given) if given.get("base_seed") is not None else None
    streams: object = given.get("streams")
    if streams is None and not {"dataset", "reached"} & given.keys():
        return None if base_seed is None else StreamsProgress([], 0, base_seed, keeps_seed=True)
    found = cast("list[object]", streams) if isinstance(streams, list) else None
    if found is None or len(found) != num_workers:
        saved = "not of worker streams" if found is None else f"of {len(found)} streams, one for each worker"
        raise StateError(
            f"a state inside an epoch of an iterable dataset resumes only with as many workers; this one is {saved}, "
            f"and num_workers is {num_workers}. Use as many, or a state that was saved at an epoch's end"
        )
    turn = whole_number(given, "turn", 0, num_workers)
    return StreamsProgress([_stream_progress(each) for each in found], turn, base_seed)


def _stream_progress(value: object) -> StreamProgress:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    number, state, is_over = parts if len(parts) == _PARTS else (None, None, None)
    if type(number) is not int or not 0 <= number <= _MAX_STREAM_BATCHES or not isinstance(is_over, bool):
        raise damaged("the entry of a stream must be the number of its next batch, a state, and whether it has ended")
    return StreamProgress(number, state, is_over)
