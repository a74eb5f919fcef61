"""What both type checkers infer for the public names; it is read by them, and never run."""

from typing import assert_type

import penstock.errors as errors

assert_type(errors.SourceError("no such file", source="Files(...)", keys=[3]).keys, tuple[int, ...])
assert_type(errors.SourceError("no such file").source, str)
assert_type(errors.WorkerError("died", exit_code=-9).exit_code, int | None)
assert_type(errors.MissingDependencyError("pyarrow", extra="parquet").extra, str)


def catches() -> None:
    """What a caller catches by a built-in type has ours."""
    try:
        raise errors.StateError("written by another dataset")
    except errors.UsageError as error:
        assert_type(error, errors.UsageError)
