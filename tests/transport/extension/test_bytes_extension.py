"""Extensions, built by themselves from the public headers, exchange bytes with Python without a copy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import pytest

from penstock.transport import Bytes, leased_slots
from tests.extensions import build, load
from tests.profiles import IS_LONG
from tests.programs.forked import outcome
from tests.transport.owners import Memory, every_owner_goes

SOURCE = Path(__file__).parent / "native_bytes.cpp"
NAME = "native_bytes"


class Extension(Protocol):
    """The contents of the extension's module."""

    def make(self, size: int, /) -> Bytes:
        """Return a C++ string of so many x."""
        ...

    def keep(self, source: object, /) -> int:
        """Keep a handle over the source in C++; return its address."""
        ...

    def give(self) -> Bytes:
        """Return the handle kept."""
        ...

    def drop_elsewhere(self) -> None:
        """Share and drop the handle kept on threads of C++."""
        ...

    def drop_holding_the_lock(self) -> None:
        """Drop the handle kept on a thread of C++ while this one keeps the interpreter's lock."""
        ...

    def living(self) -> int:
        """Return how many owners the extension made that live."""
        ...


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the extension, built as C++17 without a warning."""
    return build(SOURCE, tmp_path_factory)


@pytest.fixture
def extension(library: Path) -> Iterator[Extension]:
    """Return the extension's module; afterwards it has no owner left, and nor has Penstock."""
    module = cast("Extension", load(library))
    with every_owner_goes():
        yield module
    assert module.living() == 0


def place(holder: object) -> int:
    """Return the address of a buffer."""
    return np.frombuffer(cast("bytes", holder), np.uint8).ctypes.data


@pytest.mark.parametrize("size", [0, 3, 1000])
def test_a_cpp_string_goes_to_python_and_back(extension: Extension, size: int) -> None:
    """A string made in C++ is read in Python where it is, and comes back to C++ as the same memory and owner."""
    handle = extension.make(size)
    assert type(handle) is Bytes
    assert handle == b"x" * size
    assert f"{size} bytes of native memory, read-only" in repr(handle)
    kept = extension.keep(handle)
    assert extension.living() == 1
    del handle
    back = extension.give()
    assert back == b"x" * size
    if size:
        assert place(back) == kept
    part = extension.keep(back[1:])
    assert part == kept + min(1, size)
    assert extension.living() == 1
    extension.drop_holding_the_lock()
    assert extension.living() == 1
    del back
    assert extension.living() == 0


def test_any_buffer_goes_to_cpp_and_back(extension: Extension) -> None:
    """Python's bytes, arrays and leases are seen in C++ where they are, and held until the last handle is dropped."""
    memory, leases = Memory(), leased_slots()
    array = np.arange(8, dtype=np.uint8).data
    sources: list[bytes | bytearray | memoryview | Bytes] = [b"abc", bytearray(b"abc"), array, Bytes(b"abc")]
    for source in sources:
        assert extension.keep(source) == place(source) == place(extension.give())
        assert extension.give() == source
        assert extension.give().readonly is memoryview(source).readonly
    extension.keep(memory.lease(memory.allocate(64), 5))
    assert leased_slots() == leases + 1
    assert memory.released() == []
    extension.drop_elsewhere()
    assert memory.released() == [5]


def test_other_objects_raise_pythons_error(extension: Extension) -> None:
    """C++ gets an exception over Python's own, and nothing is held."""
    with pytest.raises(TypeError, match="bytes-like"):
        extension.keep("text")
    with pytest.raises(BufferError, match="format 'd'"):
        extension.keep(np.zeros(3))
    with pytest.raises(BufferError, match="C-contiguous"):
        extension.keep(memoryview(b"abc")[::2])


def test_other_types_may_offer_their_bytes(extension: Extension) -> None:
    """An object whose type has `__penstock_bytes__` is taken by its result; an error inside passes through."""

    class Page:
        def __penstock_bytes__(self) -> object:
            return extension.make(7).__penstock_bytes__()

    class Broken:
        def __penstock_bytes__(self) -> object:
            raise KeyError("mine")

    class Wrong:
        def __penstock_bytes__(self) -> object:
            return b"no capsule"

    extension.keep(Page())
    assert extension.give() == Bytes(Page()) == b"x" * 7
    with pytest.raises(KeyError, match="mine"):
        extension.keep(Broken())
    with pytest.raises(ValueError, match=r"(?i)capsule"):
        extension.keep(Wrong())
    assert Bytes(extension.give().__penstock_bytes__()) == b"x" * 7
    extension.drop_elsewhere()


@pytest.mark.longer
@pytest.mark.usefixtures("forked_programs")
def test_threads_of_cpp_may_drop_while_python_ends(library: Path) -> None:
    """Handles over Python's objects that C++ still drops while the interpreter ends don't hang, crash or say a word."""
    program = f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location({NAME!r}, {str(library)!r})
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
        extension.keep(bytearray(8))
        extension.drop_in_the_background([bytearray(8) for _ in range(300_000)])
    """
    for _ in range(3 if IS_LONG else 1):  # the end comes at another moment each time
        assert outcome(program) == (0, "", "")
