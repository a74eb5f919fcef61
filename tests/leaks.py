"""The leak check: after every test the process holds the same resources as before it.

Held things are threads, child processes, file descriptors, entries of /dev/shm and leased slots. What was only
garbage is collected first. Then the check waits, for a bounded time, until nothing is left: a descriptor or process
that is being closed goes away a moment after the call that closed it, and no event tells that the last is gone. It is
the one place where the tests look repeatedly; the pauses grow, so that a busy machine isn't kept busy by it. Shared
memory that only other programs use isn't waited for, since two processes that run tests would wait for each other.

Nothing shows which program made a semaphore, and those of a killed program stay. So only semaphores with this process's
id in their name count: `multiprocessing` is made to write it into the names of its own.

A test that failed isn't checked: its traceback still holds the frames, and with them what they own.
"""

import gc
import importlib.util
import multiprocessing.resource_tracker
import os
import re
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

PATIENCE_SECONDS = 20.0  # of a busy machine
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.002, 0.5
SPARES: Final = {"penstock-spare\n", "penstock-forks\n"}  # a process has its parent's name until it sets its own

_failed = pytest.StashKey[bool]()


def held() -> dict[str, str]:
    """Return the resources that this process holds now, each with a description."""
    vars(multiprocessing.current_process())["_config"]["semprefix"] = f"/mp-{os.getpid()}"  # its children inherit it
    return {**_threads(), **_processes(), **_descriptors(), **_shared_memory(), **_leased_slots()}


def left_behind(before: Mapping[str, str], patience_seconds: float) -> list[str]:
    """Return the descriptions of resources that are held now and were not `before`, after waiting for their release."""
    never_set = threading.Event()
    waited, pause = 0.0, FIRST_PAUSE_SECONDS
    while True:
        gc.collect()
        left = _beyond(before)
        if not left or waited >= patience_seconds:
            return left
        never_set.wait(pause)
        waited, pause = waited + pause, min(1.5 * pause, LAST_PAUSE_SECONDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test failed, for the fixture's teardown."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture(autouse=True, scope="session")
def settled_process() -> Generator[None]:
    """Start the resources that Python starts once and keeps to the end, so that no single test is blamed for them.

    What the imports made is set aside from the collector: with the frameworks loaded, each collection would otherwise
    walk through millions of their objects.
    """
    if sys.platform != "win32":
        multiprocessing.resource_tracker.ensure_running()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def started_zarr(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the event loop and the threads that zarr keeps to the end of the program, if it is installed."""
    if importlib.util.find_spec("zarr") is None:
        return
    zarr = importlib.import_module("zarr")
    zarr.config.set({"threading.max_workers": 1})
    zarr.create_array(str(tmp_path_factory.mktemp("zarr")), shape=(1,), dtype="i8")[:] = 1


@pytest.fixture(autouse=True, scope="module")
def settled_module(settled_process: None) -> None:  # noqa: ARG001 - started before the test
    """Set aside what a module's imports and earlier tests made and keep, which no further test can leave behind.

    The last failure is forgotten before: what its frames hold, such as a loader with its processes, is still collected.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest, settled_module: None) -> Generator[None]:  # noqa: ARG001 - started before the test
    """Fail a test that leaves resources behind, and list them."""
    before = held()
    yield
    if request.node.stash.get(_failed, False):
        return
    left = left_behind(before, PATIENCE_SECONDS)
    if left:
        listed = "\n".join(f"  - {description}" for description in left)
        pytest.fail(f"the test left behind:\n{listed}", pytrace=False)
    gc.freeze()  # what lives on is the module's or pytest's; each further collection would walk through it


def _beyond(before: Mapping[str, str]) -> list[str]:
    kept = _kept_to_the_end()
    left = {
        identity: description
        for identity, description in held().items()
        if identity not in before and not f"{identity} ".startswith(kept)
    }
    for identity in _anothers({identity for identity in left if identity.startswith("shared memory ")}):
        del left[identity]
    return [left[identity] for identity in sorted(left)]


def _kept_to_the_end() -> tuple[str, ...]:
    """Return how what belongs to the servers that fork workers begins; they, and a spare of each, stay to the end."""
    link = sys.modules.get("penstock._processes._fork_client")
    if link is None:
        return ()
    pids: list[int]
    descriptors: list[int]
    pids, descriptors = link.servers.held()
    kept = [*pids, *(spare for pid in pids for spare in spares_of(pid)[:1])]
    return (*(f"process {pid} " for pid in kept), *(f"descriptor {number} " for number in descriptors))


def spares_of(server: int) -> list[int]:
    """Return the pids of the processes that a fork server has forked ahead, and that have no work yet."""
    found: list[int] = []
    for pid in _descendants():
        with suppress(OSError):  # it has ended
            if _parent(pid) == server and Path(f"/proc/{pid}/comm").read_text() in SPARES:
                found.append(pid)
    return found


def _threads() -> dict[str, str]:
    return {
        f"thread {id(thread)}": f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}, still running"
        for thread in threading.enumerate()
    }


def _processes() -> dict[str, str]:
    found: dict[str, str] = {}
    for pid in _descendants():
        try:
            description = f"{_command(psutil.Process(pid))}, still running"
        except psutil.ZombieProcess:
            description = "ended but never waited for"
        except psutil.NoSuchProcess:
            continue
        found[f"process {pid}"] = f"child process {pid} {description}"
    return found


_parents: dict[int, int] = {}  # of all processes at the last look; most of them needn't be read again


def _descendants() -> list[int]:
    """Return the pids of this process's children, of their children, and so on."""
    if not sys.platform.startswith("linux"):
        return [child.pid for child in psutil.Process().children(recursive=True)]
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    for pid in pids:
        if _parents.get(pid) not in pids:  # it is new, or its parent has ended, so that it has another one
            _parents[pid] = _parent(pid)
    for pid in _parents.keys() - pids:
        del _parents[pid]
    for pid in _below_this():  # a parent that has ended, and for which nothing has waited, is in /proc still
        _parents[pid] = _parent(pid)
    return sorted(_below_this())


def _below_this() -> set[int]:
    own = {os.getpid()}
    while found := {pid for pid, parent in _parents.items() if parent in own} - own:
        own |= found
    return own - {os.getpid()}


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split(maxsplit=2)[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0


def _command(process: psutil.Process) -> str:
    return f"({' '.join(process.cmdline())[:120] or process.name()})"


def _descriptors() -> dict[str, str]:
    if not sys.platform.startswith("linux"):  # only Linux lists them; elsewhere the other checks remain
        return {}
    found: dict[str, str] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # without a Path, which takes longer than the call
        except OSError:  # the descriptor that listed the folder
            continue
        found[f"descriptor {entry} {target}"] = f"file descriptor {entry} -> {target}, still open"
    return found


def _shared_memory() -> dict[str, str]:
    folder = Path("/dev/shm")
    if not folder.exists():
        return {}
    # Other processes of the machine have entries too; ours are those of this user that appear and stay.
    own = re.compile(rf"(?!sem\.)|.*\b{os.getpid()}\b")
    return {
        f"shared memory {entry.name}": f"shared memory {entry.path} of {size} bytes, not unlinked"
        for entry in os.scandir(folder)
        if own.match(entry.name) and (size := _size_if_own(entry)) is not None and not _is_unfinished(entry, size)
    }


def _is_unfinished(entry: os.DirEntry[str], size: int) -> bool:
    """Return whether torch has created the memory and not yet given it a size, which a process killed then never does.

    Such an entry holds nothing, and nothing tells which program's it is.
    """
    return size == 0 and entry.name.startswith("torch_")


def _anothers(identities: set[str]) -> set[str]:
    """Return the shared memory of programs beside this one, such as another process that runs tests, or what is gone.

    It is no leak, and waiting for it would make each test of this process last as long as the other's.
    """
    if not identities:
        return identities
    places: dict[str, tuple[str, str] | None] = {}
    for identity in identities:
        try:
            status = Path("/dev/shm", identity.removeprefix("shared memory ")).stat()
        except FileNotFoundError:
            places[identity] = None
        else:
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            places[identity] = (device, str(status.st_ino))
    mapped = _mapped_by_others()
    return {identity for identity, place in places.items() if place is None or place in mapped}


def _mapped_by_others() -> set[tuple[str, str]]:
    """Return device and inode of the shared memory that processes of other programs have mapped."""
    own = {os.getpid(), *_descendants()}
    mapped: set[tuple[str, str]] = set()
    for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - own:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:  # it has ended, or is another user's
            continue
        for line in maps.splitlines():
            if "/dev/shm/" in line:  # not always under the entry's name: a semaphore is opened under another one
                _, _, _, device, inode, _ = line.split(maxsplit=5)
                mapped.add((device, inode))
    return mapped


def _size_if_own(entry: os.DirEntry[str]) -> int | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_size if status.st_uid == os.getuid() else None


def _leased_slots() -> dict[str, str]:
    """Ask `penstock.transport.leased_slots()`, if anything has imported it and it exists."""
    count_leased = getattr(sys.modules.get("penstock.transport"), "leased_slots", None)
    if count_leased is None:
        return {}
    return {f"slot {number}": f"leased slot (number {number + 1} of those held)" for number in range(count_leased())}
