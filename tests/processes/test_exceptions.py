"""Exceptions on their way to another process: as themselves, or in words where they would arrive as something else."""

from penstock._processes._exceptions import pack_error, unpack_error
from penstock.errors import WorkerError


class ChangesError(Exception):
    """Is unpickled as another exception."""

    def __reduce__(self) -> tuple[type[Exception], tuple[str]]:
        return LookupError, ("nothing",)


def test_an_exception_arrives_as_itself() -> None:
    """Type and arguments are kept; a note has the traceback."""
    arrived = unpack_error(pack_error(LookupError("no such record", 7)))
    assert (type(arrived), arrived.args) == (LookupError, ("no such record", 7))
    assert "LookupError" in arrived.__notes__[0]


def test_an_exception_that_would_arrive_as_another_comes_in_words() -> None:
    """Its own type and message are named, and not those that pickle makes of it."""
    arrived = unpack_error(pack_error(ChangesError("a hole in the bucket")))
    assert type(arrived) is WorkerError
    assert "ChangesError: a hole in the bucket" in str(arrived)
