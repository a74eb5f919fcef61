"""A loader's state saved and restored by Orbax, beside the model and in one call with it.

    manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=checkpoint.Save(loader)))
    manager.restore(step, args=ocp.args.Composite(…, data=checkpoint.Restore(loader)))

The state is taken when `save` is called, and written when Orbax writes the rest. Where all processes have the same
state, which is so for every indexable dataset, the first one writes it; else each writes a file of its own. Restoring
reads all of them, so it doesn't matter how many processes there were.
"""

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock._state import State
from penstock.errors import StateError, UsageError

if TYPE_CHECKING:
    import os

jax: Any = importlib.import_module("jax")  # by name: type checkers may not find it installed
ocp: Any = importlib.import_module("orbax.checkpoint")
epath: Any = importlib.import_module("etils.epath")  # whatever store Orbax writes to

_DIFFERING = {"cursor", "ahead"}  # what a state has that isn't every rank's


@runtime_checkable
class _Loader(Protocol):
    def state_dict(self) -> State:
        """Return where it is."""
        ...

    def load_state_dict(self, state: list[State]) -> None:
        """Go to where all processes' states were saved."""
        ...


@runtime_checkable
class _Iterator(Protocol):
    def get_state(self) -> State:
        """Return where it is."""
        ...

    def set_state(self, state: list[State]) -> None:
        """Go to where all processes' states were saved."""
        ...


if TYPE_CHECKING:  # whose types aren't known where Orbax isn't installed

    class _AsyncHandler:
        pass

else:
    _AsyncHandler = ocp.AsyncCheckpointHandler


class Handler(_AsyncHandler):
    """What Orbax calls; `Save` and `Restore` name it, so it needn't be named elsewhere.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> from penstock.jax import checkpoint
        >>> loader, resumed = ps.Loader(ps.range(8).batch(4)), ps.Loader(ps.range(8).batch(4))
        >>> first = next(iter(loader))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint.Handler().save(folder, checkpoint.Save(loader))
        ...     same = checkpoint.Handler().restore(folder, checkpoint.Restore(resumed))
        >>> [batch.tolist() for batch in same]
        [[4, 5, 6, 7]]
    """

    def save(self, directory: "str | os.PathLike[str]", args: "Save") -> None:
        """Write the state of a loader into a directory, now."""
        state = _state_of(args.item)
        if _is_written_here(state):
            _write(directory, state)

    async def async_save(self, directory: "str | os.PathLike[str]", args: "Save") -> list[Any]:
        """Take the state of a loader now, and write it when Orbax writes.

        Returns:
            What Orbax waits for.
        """
        state = _state_of(args.item)

        async def write() -> None:
            _write(directory, state)

        if not _is_written_here(state):
            return []
        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="penstock_loader_save")]

    def restore(self, directory: "str | os.PathLike[str]", args: "Restore") -> object:
        """Have a loader go to where the state in a directory was saved.

        Returns:
            The loader.

        Raises:
            StateError: if there is none, or it belongs to another dataset.
        """
        found = sorted(epath.Path(directory).glob("process-*.json"))
        if not found:
            raise StateError(f"there is no state of a loader in {directory}. Name the item that checkpoint.Save had.")
        states = {_rank(state): state for state in (json.loads(path.read_text()) for path in found)}
        item = args.item
        if isinstance(item, _Iterator):
            item.set_state(list(states.values()))
        elif isinstance(item, _Loader):
            item.load_state_dict(list(states.values()))
        return item


@ocp.args.register_with_handler(Handler, for_save=True)
@dataclass
class Save(ocp.args.CheckpointArgs):
    """What to save: a loader, or its iterator.

    Args:
        item: a loader of Penstock's, of whatever door, or an iterator over one.

    Raises:
        UsageError: if it is none.

    Example:
        >>> import penstock as ps
        >>> from penstock.jax import checkpoint
        >>> loader = ps.Loader(ps.range(8).batch(4))
        >>> checkpoint.Save(loader).item is loader
        True
    """

    item: Any

    def __post_init__(self) -> None:
        _need_loader("Save", self.item)


@ocp.args.register_with_handler(Handler, for_restore=True)
@dataclass
class Restore(ocp.args.CheckpointArgs):
    """What to restore: a loader, or its iterator, over the dataset that was saved.

    Args:
        item: a loader of Penstock's, of whatever door, or an iterator over one; it is what restoring returns.

    Raises:
        UsageError: if it is none.

    Example:
        >>> import penstock as ps
        >>> from penstock.jax import checkpoint
        >>> checkpoint.Restore("loader")
        Traceback (most recent call last):
        penstock.errors.UsageError: checkpoint.Restore takes a loader or its iterator; got 'loader'
    """

    item: Any

    def __post_init__(self) -> None:
        _need_loader("Restore", self.item)


def _need_loader(name: str, item: object) -> None:
    if not isinstance(item, _Loader | _Iterator):
        raise UsageError(f"checkpoint.{name} takes a loader or its iterator; got {item!r}")


def _state_of(item: _Loader | _Iterator) -> State:
    return item.get_state() if isinstance(item, _Iterator) else item.state_dict()


def _is_written_here(state: State) -> bool:
    return bool(jax.process_index() == 0) or not _DIFFERING.isdisjoint(state)


def _rank(state: State) -> int:
    """Return the rank that a state is of; processes that hold the same rows have the same."""
    return int(state.get("rank", 0))


def _write(directory: "str | os.PathLike[str]", state: State) -> None:
    name = f"process-{jax.process_index()}-of-{jax.process_count()}.json"
    (epath.Path(directory) / name).write_text(json.dumps(state))
