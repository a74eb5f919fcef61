"""Drafts: files under other names, which get their own when they are whole, on the disk, and have a checksum.

A host that loses power could otherwise keep the name and lose the content, and later calls take a file that exists as
whole. The name of a draft shows the process that writes it, so that the drafts of killed processes can be removed.

The checksum is that of the bytes on their way to the file, while the processor's cache has them; the file is not read
again. So a draft can only be appended to. Rejected: a thread that hashes beside the writer. It takes the interpreter's
lock at each part, and where each processor has a worker, there is no other for it.
"""

import contextlib
import hashlib
import io
import os
import re
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from penstock._os import this_host

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Draft(io.RawIOBase):
    """The draft of a file, which can be appended to.

    Args:
        file: the draft.
        path: what the file will be, for messages.
    """

    def __init__(self, file: io.FileIO, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._size

    def write(self, content: "Buffer", /) -> int:
        """Append bytes."""
        rest = memoryview(content).cast("B")
        size = len(rest)
        self._digest.update(rest)
        with self.named():
            while rest:  # the system may write fewer bytes
                rest = rest[self._file.write(rest) :]
        self._size += size
        return size

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Add the path to an error of the system, such as a full disk, which names no file."""
        try:
            yield
        except OSError as error:
            error.filename = self._path
            raise

    def entry(self, path: str) -> dict[str, Any]:
        """Return what `file_entry` returns of the file at a path, which the draft has become."""
        return _entry(path, self._size, self._digest.hexdigest())


@contextlib.contextmanager
def drafted(path: str, name: Callable[[str, str], object] = os.replace) -> Generator[Draft]:
    """Yield the draft of a file, which gets its name at the end; after an exception, no file is left.

    Args:
        path: of the file.
        name: gives the draft, its first argument, the path, its second.
    """
    draft = draft_of(path)
    try:
        with open(draft, "wb", buffering=0) as file:
            given = Draft(file, path)
            yield given
            with given.named():
                os.fsync(file.fileno())
        name(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(draft)
        raise


def name_first(draft: str, path: str) -> None:
    """Give a draft its name, unless another file has it; where the file system has no links, replace that one."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:
        os.replace(draft, path)
        return
    os.remove(draft)


def file_entry(path: str) -> dict[str, Any]:
    """Return the name, size and checksum of a file, for the manifest."""
    with open(path, "rb") as file:
        return _entry(path, os.path.getsize(path), hashlib.file_digest(file, "sha256").hexdigest())


def _entry(path: str, size: int, checksum: str) -> dict[str, Any]:
    return {"name": os.path.basename(path), "bytes": size, "sha256": checksum}


def draft_of(path: str) -> str:
    """Return the name of a draft of a file, which shows the process that writes it."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{this_host()}.{os.getpid()}.{threading.get_ident()}.draft")


def remove_leftovers(folder: str) -> None:
    """Remove the drafts of processes of this host that have ended, as by SIGKILL; those before its last boot stay."""
    ours = re.compile(rf"\..*\.{this_host()}\.([0-9]{{1,9}})\.[0-9]+\.draft", re.DOTALL)
    for name in os.listdir(folder):
        found = ours.fullmatch(name)
        if found and not _is_alive(int(found[1])):
            with contextlib.suppress(OSError):  # another call removed it, or it is another user's, or read-only
                os.remove(os.path.join(folder, name))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"  # a zombie has ended
    except OSError:
        return True
