"""A loader's state, saved and restored by Orbax together with the model, in one call.

    manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=checkpoint.Save(loader)))
    manager.restore(step, args=ocp.args.Composite(…, data=checkpoint.Restore(loader)))

The state is read when `save` is called, and written when Orbax writes the rest. If all processes have the same state,
as with every indexable dataset, only the first process writes it; otherwise each process writes a file of its own.
Restoring reads all files, so the number of processes may change.
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
epath: Any = importlib.import_module("etils.epath")  # paths in any storage that Orbax writes to

_DIFFERING = {"cursor", "ahead"}  # keys of states that differ between ranks


@runtime_checkable
class _Loader(Protocol):
    def state_dict(self) -> State:
        """Return the state."""
        ...

    def load_state_dict(self, state: list[State]) -> None:
        """Resume from the states of all processes."""
        ...


@runtime_checkable
class _Iterator(Protocol):
    def get_state(self) -> State:
        """Return the state."""
        ...

    def set_state(self, state: list[State]) -> None:
        """Resume from the states of all processes."""
        ...


if TYPE_CHECKING:  # type checkers don't find Orbax where it isn't installed

    class _AsyncHandler:
        pass

else:
    _AsyncHandler = ocp.AsyncCheckpointHandler


class Handler(_AsyncHandler):
    """The handler that Orbax calls; `Save` and `Restore` register it, so programs need not name it.

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
        """Read the state of a loader now, and write it when Orbax writes.

        Returns:
            The futures that Orbax waits for.
        """
        state = _state_of(args.item)

        async def write() -> None:
            _write(directory, state)

        if not _is_written_here(state):
            return []
        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="penstock_loader_save")]

    def restore(self, directory: "str | os.PathLike[str]", args: "Restore") -> object:
        """Load the state in a directory into a loader.

        Returns:
            The loader.

        Raises:
            StateError: there is no state, or it belongs to another dataset.
        """
        found = sorted(epath.Path(directory).glob("process-*.json"))
        if not found:
            raise StateError(f"there is no state of a loader in {directory}. Use the item name of checkpoint.Save.")
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
    """A loader, or its iterator, to be saved.

    Args:
        item: one of Penstock's loaders, for any framework, or its iterator.

    Raises:
        UsageError: it is neither.

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
    """A loader, or its iterator, to be restored; its dataset must be the one that was saved.

    Args:
        item: one of Penstock's loaders, for any framework, or its iterator; restoring returns it.

    Raises:
        UsageError: it is neither.

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
    """Return the rank in a state; processes that load the same rows have the same rank."""
    return int(state.get("rank", 0))


def _write(directory: "str | os.PathLike[str]", state: State) -> None:
    name = f"process-{jax.process_index()}-of-{jax.process_count()}.json"
    (epath.Path(directory) / name).write_text(json.dumps(state))
