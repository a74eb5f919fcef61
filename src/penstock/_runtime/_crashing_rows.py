"""What is told of an element that processes die of: which one it is, and how to go on without it."""

from penstock._graph._locate import locate, source_of
from penstock._graph._nodes import Node, Read
from penstock._graph._streaming._block_input import BlockInput
from penstock._plan._plan import Shard
from penstock._plan._program import Batches
from penstock._runtime._batches import Unit, origin, rows_of
from penstock.errors import WorkerError
from penstock.sources import describe_key


def deadly_position_error(leaf: BlockInput, number: int, death: WorkerError) -> WorkerError:
    """Return what is raised in the place of an element of what is read in order, given by its number in the course."""
    position = int(leaf.input_range.positions(number, number + 1)[0])
    record = describe_record(leaf.node, leaf.epoch, position)
    return WorkerError(
        f"position {position} of epoch {leaf.epoch}, {record}, kills worker processes, one "
        f"after the other. Leave the record out, or mend what is done to it. The last death: {death}",
        exit_code=death.exit_code,
    )


def deadly_batch_error(step: int, death: WorkerError, row: int | None = None) -> WorkerError:
    """Return what is raised in the place of a batch of what is read in order, given by its step.

    Args:
        step: its number.
        death: the last of the processes'.
        row: which of its rows they were at; None where it is none of them, but the batch as a whole.
    """
    if row is not None:
        return WorkerError(
            f"row {row} of step {step} kills worker processes, one after the other. Leave the record out, or mend what "
            f"is done to it. The last death: {death}",
            exit_code=death.exit_code,
        )
    return WorkerError(
        f"what is computed of all rows of step {step} together kills worker processes, one after the other. Mend what "
        f'is done to the batch, or leave it out: on_error="skip" of a step above it does. The last death: {death}',
        exit_code=death.exit_code,
    )


def describe_record(node: Node, epoch: int, position: int) -> str:
    """Return which record an element is made of, by its key, and its file where the source knows that."""
    _, component, key = locate(node, epoch, position)
    return _record(node, component, key)


def _record(node: Node, component: str, key: int) -> str:
    source = source_of(node, component)
    record = describe_key(source.source, key) if isinstance(source, Read) else f"key {key}"
    return f"{record} of {component!r}" if component else record


def deadly_error(program: Batches, shard: Shard, unit: Unit, row: int | None, death: WorkerError) -> WorkerError:
    """Return what is raised in a batch's place.

    Args:
        program: the plan's.
        shard: the plan's.
        unit: the step.
        row: which of its rows the processes were at; None where it is none of them, but the batch as a whole.
        death: the last of the processes'.
    """
    if row is None:
        what = f"what is computed of all rows of step {unit.step} together"
    else:
        found = origin(program, rows_of(program, shard, unit), row)
        record = _record(program.rows, found.component, found.key)
        what = f"row {row} of step {unit.step}, at epoch {found.epoch}, position {found.position}, {record},"
    return WorkerError(
        f"{what} kills worker processes, one after the other. Leave the record out, mend what is done to it, or go "
        f"past it with loader.seek({unit.step + 1}). The last death: {death}",
        exit_code=death.exit_code,
    )
