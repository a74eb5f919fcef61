"""Exhausted limits, kept memory and wrong addresses: an error says so, and nothing is left or disturbed."""

import asyncio
import contextlib
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import EndOfPipeError, PeerError, PenstockError, UsageError
from penstock.transport import Arena, TensorPipeReader, TensorPipeWriter
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import element_of, free_path, is_element, receive_and_keep, running

SHARING = 63  # pipes that one arena can serve


def test_one_arena_serves_so_many_pipes_at_once_and_any_number_in_all() -> None:
    """One more is refused with the ways out; a closed one makes room, as soon as what it sent was dropped."""
    with TensorPipeReader(num_writers=None) as reader, Arena() as arena, contextlib.ExitStack() as scope:
        writers = [scope.enter_context(TensorPipeWriter(reader.address, arena=arena)) for _ in range(SHARING)]
        with pytest.raises(UsageError, match=r"63 participants.*close some of the pipes"):
            TensorPipeWriter(reader.address, arena=arena)
        writers[0].send(element_of(1))
        writers[0].close()
        kept = None
        with pytest.raises(UsageError):
            TensorPipeWriter(reader.address, arena=arena)
        while kept is None:
            with contextlib.suppress(PeerError):  # those that were refused had connected already
                kept = reader.receive(timeout_seconds=PATIENCE_SECONDS)
        with pytest.raises(UsageError):
            TensorPipeWriter(reader.address, arena=arena)
        assert is_element(kept, 1)
        del kept
        for step in range(2 * SHARING):
            with TensorPipeWriter(reader.address, arena=arena) as writer:
                writer.send({**element_of(step), "late": True})
            element = None
            while element is None or "late" not in element:
                with contextlib.suppress(PeerError):
                    element = reader.receive(timeout_seconds=PATIENCE_SECONDS)
            assert element["step"] == step
            del element


def test_the_death_of_a_reader_raises_though_its_memory_was_taken_back(tmp_path: Path) -> None:
    """Another pipe of the same arena has removed the dead reader's holds, and continues."""
    address, ready, kept = free_path(tmp_path), get_context("fork").Event(), get_context("fork").Event()
    with Arena() as arena, TensorPipeReader() as reader, TensorPipeWriter(reader.address, arena=arena) as other:
        with running("fork", receive_and_keep, address, 1, ready, kept) as process:
            assert ready.wait(PATIENCE_SECONDS)
            writer = TensorPipeWriter(address, arena=arena)
            writer.send(element_of(0))
            assert kept.wait(PATIENCE_SECONDS)
            process.kill()
            process.join()
            assert arena.reclaim() == 1
            with TensorPipeWriter(reader.address, arena=arena):  # it must not get the number of the dead
                for _ in range(2):
                    with pytest.raises(PeerError, match="died"):
                        writer.send(element_of(1))
            with pytest.raises(PeerError):
                writer.close()
            other.send(element_of(2))
            assert is_element(reader.receive(timeout_seconds=PATIENCE_SECONDS), 2)
        counters = arena.counters
        assert counters.leased == counters.returned


def test_the_death_of_a_reader_ends_another_writers_wait_for_its_memory(tmp_path: Path) -> None:
    """A writer that waits for memory of a shared arena notices the end of each process that keeps some."""
    address, ready, kept = free_path(tmp_path), get_context("fork").Event(), get_context("fork").Event()
    element = np.ones(900_000, np.uint8)
    with Arena(max_bytes=1_000_000) as arena, running("fork", receive_and_keep, address, 1, ready, kept) as process:
        assert ready.wait(PATIENCE_SECONDS)
        with TensorPipeReader() as reader, TensorPipeWriter(reader.address, arena=arena) as writer:
            other = TensorPipeWriter(address, arena=arena)
            other.send(element)
            assert kept.wait(PATIENCE_SECONDS)
            waiting = threading.Thread(target=writer.send, args=(element,), kwargs={"timeout_seconds": 20})
            waiting.start()
            while not writer.counters.waits:
                threading.Event().wait(0.001)
            process.kill()
            assert (reader.receive(timeout_seconds=PATIENCE_SECONDS) == element).all()
            waiting.join()
            with pytest.raises(PeerError):
                other.close()


def test_a_cycle_that_keeps_memory_of_a_shared_arena_is_collected() -> None:
    """Even if Python's collector doesn't run, a writer that waits for memory gets it."""
    with Arena(max_bytes=1_000_000) as arena, TensorPipeReader() as reader:
        gc.disable()
        try:
            cycle: list[object] = [arena.empty((900_000,), np.uint8)]
            cycle.append(cycle)
            del cycle
            with TensorPipeWriter(reader.address, arena=arena) as writer:
                writer.send(np.ones(900_000, np.uint8), timeout_seconds=PATIENCE_SECONDS)
        finally:
            gc.enable()


def test_closing_the_arena_first_is_no_leak() -> None:
    """Its pipes still close, and their readers get the end."""
    with TensorPipeReader() as reader, Arena() as arena:
        writer = TensorPipeWriter(reader.address, arena=arena)
        writer.send(element_of(0))
        arena.close()
        writer.close()
        assert is_element(reader.receive(timeout_seconds=PATIENCE_SECONDS), 0)
        with pytest.raises(EndOfPipeError):
            reader.receive(timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "'@name' or a path"),
        ("@", "'@name' or a path"),
        ("", "'@name' or a path"),
        ("/any/" + "x" * 103, "at most 107 bytes.* has 108"),
        ("@" + "x" * 107, "at most 107 bytes"),
        ("/any/\0x", "none of them zero"),
        ("/nonexistent/folder/reader", "No such file or directory"),
    ],
)
def test_an_address_that_can_not_be_is_refused(address: str, message: str) -> None:
    """By both ends, with the reason."""
    with pytest.raises(UsageError, match=message):
        TensorPipeReader(address)
    with pytest.raises(PenstockError, match=message):
        TensorPipeWriter(address)


def test_addresses_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of 107 bytes work; that of a relative path is the whole path, and closing removes that file."""
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as folder:
        for address in (f"{folder}/".ljust(107, "x"), "@" + "x" * 106, "./reader.sock"):
            with TensorPipeReader(address) as reader:
                monkeypatch.chdir("/")
                with TensorPipeWriter(reader.address) as writer:
                    writer.send(1)
                    assert reader.receive() == 1
                assert reader.address == str(tmp_path / "reader.sock" if address[0] == "." else address)
            assert not Path(reader.address).exists()
            monkeypatch.chdir(tmp_path)


def test_without_descriptors_an_error_says_so_and_both_ends_close() -> None:
    """Wherever they run out: while an end is opened, a writer let in, or memory handed over."""
    for left in range(1, 26):
        with descriptors_left(left):
            try:
                with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
                    writer.send(element_of(0))
                    assert is_element(reader.receive(timeout_seconds=PATIENCE_SECONDS), 0)
            except (OSError, PenstockError, RuntimeError) as error:
                texts = f"{error!r} {error.__cause__!r} {error.__context__!r}"
                assert "Too many open files" in texts or "ulimit -n" in texts, texts


def test_a_missing_writer_is_named_though_no_descriptor_was_left() -> None:
    """The error for the descriptors doesn't make the reader wait for a process that has ended."""
    with TensorPipeReader(num_writers=3) as reader, running("fork", os.getpid) as process:
        reader.expect(process.pid or 0)
        process.join()
        with TensorPipeWriter(reader.address) as one, TensorPipeWriter(reader.address) as other:
            one.send(1)
            other.send(1)
            with descriptors_left(0), pytest.raises(OSError, match="can't accept another writer"):
                reader.receive(timeout_seconds=PATIENCE_SECONDS)
            assert [reader.receive(timeout_seconds=PATIENCE_SECONDS) for _ in range(2)] == [1, 1]
            with pytest.raises(PeerError, match="ended before it opened"):
                reader.receive(timeout_seconds=PATIENCE_SECONDS)


@contextlib.contextmanager
def descriptors_left(count: int) -> Generator[None]:
    """Let this process open no more than so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = max(int(name) for name in os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as scope:
        for number in set(range(opened)) - {int(name) for name in os.listdir("/proc/self/fd")}:
            scope.callback(os.close, os.dup2(0, number))  # no gaps, so that the limit tells how many are left
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + count, hard))
        scope.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


def test_received_descriptors_are_not_for_other_programs() -> None:
    """A program that is started by another thread while a pipe is open doesn't inherit its memory or sockets."""
    before = set(os.listdir("/proc/self/fd"))
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        writer.send(element_of(0))
        assert is_element(reader.receive(timeout_seconds=PATIENCE_SECONDS), 0)
        opened = [
            int(name) for name in set(os.listdir("/proc/self/fd")) - before if os.path.exists(f"/proc/self/fd/{name}")
        ]
        assert len(opened) > 4
        assert not any(map(os.get_inheritable, opened))


OPEN = """
import numpy as np, warnings
from penstock.transport import TensorPipeReader, TensorPipeWriter
{warns}
for name in ("kept", "in a cycle"):
    reader = TensorPipeReader()
    writer = TensorPipeWriter(reader.address)
    writer.send(np.ones(100_000))
    if name == "kept":
        kept = reader, writer, reader.receive()
    else:
        cycle = [reader, writer]
        cycle.append(cycle)
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_program_that_leaves_ends_open_ends_in_silence() -> None:
    """Unless it asks for the warnings, and then those are all it gets."""
    assert outcome(OPEN.format(warns="")) == (0, "", "")
    warned = outcome(OPEN.format(warns="warnings.simplefilter('default')")).stderr
    lines = [line for line in warned.splitlines() if not line.startswith(" ")]
    assert all("ResourceWarning" in line or "sys:1" in line for line in lines), lines


def test_memory_all_kept_by_the_reader_is_an_error_there() -> None:
    """At max_bytes the writer waits, and the waiting reader raises with a remedy; after that, both continue."""
    with TensorPipeReader() as reader:
        arena_bytes = 3 * element_of(0)["x"].nbytes + 20_000
        with running("fork", _send_with_limit, reader.address, 6, arena_bytes):
            kept = [reader.receive() for _ in range(3)]
            for _ in range(2):
                with pytest.raises(UsageError, match="copy=True"):
                    reader.receive()
            assert all(is_element(element, step) for step, element in enumerate(kept))
            kept.clear()
            assert [element["step"] for element in reader] == [3, 4, 5]


def test_memory_in_reference_cycles_is_collected_first() -> None:
    """A cycle that holds all memory is no error: it is collected."""
    with TensorPipeReader() as reader:
        gc.disable()
        try:
            with running("fork", _send_with_limit, reader.address, 20, 3 * element_of(0)["x"].nbytes + 20_000):
                for step in range(20):
                    element = reader.receive()
                    assert is_element(element, step)
                    element["self"] = element
                    del element
        finally:
            gc.enable()


def test_memory_all_kept_by_the_writer_is_an_error_there() -> None:
    """No other process could free it; nor could an element that is larger than max_bytes be sent."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, max_bytes=1_000_000) as writer:
        with pytest.raises(UsageError, match=r"max_bytes.*1.?000.?000"):
            writer.send(np.zeros(200_000))
        kept = [writer.empty(np.zeros(50_000))]
        with pytest.raises(UsageError, match="Drop the elements of empty"):
            kept.extend(writer.empty(np.zeros(50_000)) for _ in range(5))
        kept.clear()
        writer.send(element_of(0))
        assert is_element(reader.receive(), 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_warning_about_kept_elements_names_the_caller(*, is_async: bool) -> None:
    """The warning shows the line that called `receive`, and appears once."""
    kept: list[object] = []
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:

        async def receive() -> None:
            kept.append(await reader.areceive() if is_async else reader.receive())

        def keep_elements() -> None:
            for step in range(8):
                writer.send(element_of(step))
                asyncio.run(receive())

        with pytest.warns(UserWarning, match="received elements are still referenced") as caught:
            keep_elements()
    assert [warning.filename for warning in caught] == [__file__]
    assert "copy=True" in str(caught[0].message)


def _send_with_limit(address: str, count: int, max_bytes: int) -> None:
    with TensorPipeWriter(address, max_bytes=max_bytes) as writer:
        for step in range(count):
            writer.send(element_of(step))


KEEPING = """
import threading, numpy as np
from penstock.transport import TensorPipeReader, TensorPipeWriter

def send(address):
    with TensorPipeWriter(address) as writer:
        for step in range(4):
            writer.send(np.full(25_000_000, step, np.uint8))

with TensorPipeReader() as reader:
    threading.Thread(target=send, args=(reader.address,)).start()
    kept = list(reader)
    assert len(kept) == 4 and all((array == step).all() for step, array in enumerate(kept))
print(sum(array.nbytes for array in kept))
"""
NO_SHM = "mount -t tmpfs -o size=0,nr_inodes=1,mode=0 none /dev/shm && exec "


def test_a_pipe_carries_more_than_dev_shm_holds() -> None:
    """100 MB are kept alive at once, in a private mount namespace without /dev/shm."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("private mount namespaces are not permitted here")
    command = [unshare, "-m", "bash", "-c", NO_SHM + '"$0" -W ignore -c "$1"', sys.executable, KEEPING]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "100000000"), done.stderr


def test_seventy_writers_reach_one_reader() -> None:
    """Each with its elements in order."""
    count = 70
    with TensorPipeReader(num_writers=count) as reader, contextlib.ExitStack() as scope:
        writers = [scope.enter_context(TensorPipeWriter(reader.address)) for _ in range(count)]
        for step in range(2):
            for number, writer in enumerate(writers):
                writer.send((number, element_of(step)))
        scope.close()
        received = list(reader)
    assert all(is_element(element, step) for step in (0, 1) for _, element in received[step * count : step * count + 1])
    for number in range(count):
        assert [element["step"] for sender, element in received if sender == number] == [0, 1]
