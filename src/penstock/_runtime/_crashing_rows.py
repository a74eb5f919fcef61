"""Error messages for rows and batches that crash workers: the record, and the ways to continue without it."""

from penstock._graph import Node, Read, locate, source_of
from penstock._plan._plan import Shard
from penstock._plan._program import Batches
from penstock._runtime._batches import Unit, origin, rows_of
from penstock._streaming import BlockInput
from penstock.errors import WorkerError
from penstock.sources import describe_key


def crashing_position_error(block_input: BlockInput, number: int, death: WorkerError) -> WorkerError:
    """Return the error for an element of a dataset that is read in order, given by its number in the input range."""
    position = int(block_input.input_range.positions(number, number + 1)[0])
    record = describe_record(block_input.node, block_input.epoch, position)
    return WorkerError(
        f"position {position} of epoch {block_input.epoch}, {record}, repeatedly crashes "
        f"workers. Filter it out or fix the transform. The last crash: {death}",
        exit_code=death.exit_code,
    )


def crashing_batch_error(step: int, death: WorkerError, row: int | None = None) -> WorkerError:
    """Return the error for a batch of a dataset that is read in order, given by its step.

    Args:
        step: its number.
        death: the last crash.
        row: the row that crashed; None where the batch as a whole did.
    """
    if row is not None:
        return WorkerError(
            f"row {row} of step {step} repeatedly crashes workers. Filter it out or fix the transform. The last "
            f"crash: {death}",
            exit_code=death.exit_code,
        )
    return WorkerError(
        f"the collate function or batch-level map of step {step} repeatedly crashes workers. Fix it, or leave the "
        f'batch out with on_error="skip" of a step above the batch. The last crash: {death}',
        exit_code=death.exit_code,
    )


def describe_record(node: Node, epoch: int, position: int) -> str:
    """Return the record of an element in words: its key, and its file where the source knows the file."""
    _, component, key = locate(node, epoch, position)
    return _record(node, component, key)


def _record(node: Node, component: str, key: int) -> str:
    source = source_of(node, component)
    record = describe_key(source.source, key) if isinstance(source, Read) else f"key {key}"
    return f"{record} of {component!r}" if component else record


def crashing_row_error(program: Batches, shard: Shard, unit: Unit, row: int | None, death: WorkerError) -> WorkerError:
    """Return the error for a batch.

    Args:
        program: the plan's.
        shard: the plan's.
        unit: the step.
        row: the row that crashed; None where the batch as a whole did.
        death: the last crash.
    """
    if row is None:
        what = f"the collate function or batch-level map of step {unit.step}"
    else:
        found = origin(program, rows_of(program, shard, unit), row)
        record = _record(program.rows, found.component, found.key)
        what = f"row {row} of step {unit.step}, at epoch {found.epoch}, position {found.position}, {record},"
    return WorkerError(
        f"{what} repeatedly crashes workers. Filter it out, fix the transform, or continue after it with "
        f"loader.seek({unit.step + 1}). The last crash: {death}",
        exit_code=death.exit_code,
    )
