"""A loader in a program that ends, forks or is interrupted: real processes, real signals."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import penstock
from tests.profiles import IS_LONG

pytestmark = pytest.mark.each_value

SOURCES = str(Path(penstock.__file__).parents[1])
PATIENCE_SECONDS = 40.0
STRIDE = 1 if IS_LONG else 7  # of the places that are struck

PREAMBLE = """
import os, signal, sys, threading
import numpy as np
import penstock as ps

def keep(number):
    return True

def dataset(kind, function=abs):
    rows = ps.range(400, seed=1).shuffle().map(function)
    return rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)
"""


def program(text: str) -> list[str]:
    """Return the command that runs a program after the preamble."""
    return [sys.executable, "-c", PREAMBLE + textwrap.dedent(text)]


def environment() -> dict[str, str]:
    """Return the environment in which a program finds Penstock."""
    return {**os.environ, "PYTHONPATH": SOURCES, "PYTHONFAULTHANDLER": ""}


def run(text: str) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end."""
    return subprocess.run(
        program(text), env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
@pytest.mark.parametrize("ends", ["", "sys.exit()", "del loader, batches"])
def test_a_program_ends_in_silence(kind: str, workers: int, ends: str) -> None:
    """A program that ends while a loader is running, batches in its hands, prints nothing."""
    ended = run(
        f"""
        loader = ps.Loader(dataset({kind!r}), num_workers={workers})
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        {ends}
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_uncaught_error_is_one_traceback(workers: int) -> None:
    """A function's error that nobody catches is printed once, with its note, and nothing else."""
    ended = run(
        f"""
        def fails(number):
            if number == 7:
                raise KeyError("no such image")
            return number
        for batch in ps.Loader(dataset("indexed", fails), num_workers={workers}):
            pass
        """
    )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.count("KeyError: 'no such image'") == 1
    assert ended.stderr.count("in step 'fails' at epoch 0, position") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_a_fork_can_not_use_a_started_loader(kind: str) -> None:
    """In a fork, a loader with threads raises a ClosedError, the child ends cleanly, and the parent goes on."""
    ended = run(
        f"""
        loader = ps.Loader(dataset({kind!r}), num_workers=2)
        batches = iter(loader)
        first = next(batches)
        child = os.fork()
        if child == 0:
            refused = 0
            for use in (lambda: next(batches), lambda: iter(loader)):
                try:
                    for _ in range(100):
                        use()
                except ps.errors.ClosedError as error:
                    refused += "before a fork" in str(error) or "newer iter" in str(error)
            state = loader.state_dict()
            loader.stats()
            del batches
            loader.close()
            sys.exit(10 + refused)
        _, status = os.waitpid(child, 0)
        count = sum(len(batch) for batch in batches) + len(first)
        print(os.waitstatus_to_exitcode(status), count)
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "12 400\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_may_make_a_loader_of_its_own() -> None:
    """A loader that was not started before the fork, and one that computes inline, work in the child."""
    ended = run(
        """
        inline, started_later = ps.Loader(dataset("indexed")), ps.Loader(dataset("indexed"), num_workers=2)
        next(iter(inline))
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(a, b) for a, b in zip(started_later, dataset("indexed"), strict=True))
            sys.exit(20 + same + (len(list(inline)) == 100))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "22\n", "")


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)
late = threading.Event()

def slow(number):
    if number == {stuck}:
        print("stuck", flush=True)
        late.wait()
    return number

# What is imported at the first use: struck while it handles an error of its own, Python's import prints both.
for batch in ps.Loader(dataset({kind!r}, abs if {stuck} >= 0 else slow), num_workers={workers}):
    pass
print("ready", flush=True)
while True:
    for batch in ps.Loader(dataset({kind!r}, slow), num_workers={workers}):
        pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_ctrl_c_ends_a_program(kind: str, workers: int, turns: int) -> None:
    """SIGINT at any moment ends a training loop by one KeyboardInterrupt, whatever it was doing."""
    command = program(INTERRUPTED.format(kind=kind, workers=workers, stuck=-1))
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(turns):  # other moments of the loop: as long as it takes to start another process
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert child.returncode in {-signal.SIGINT, 130}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_going_on_after_many_ctrl_c(kind: str, workers: int) -> None:
    """Interrupted again and again at random moments, an iterator that is kept gives every batch once, in order."""
    ended = run(
        f"""
        interrupted = 0

        def handle(number, frame):
            # Only inside the loader: what an interrupt does to the loop of this program is its own affair.
            global interrupted
            while frame is not None:
                if "penstock" in frame.f_code.co_filename:
                    interrupted += 1
                    raise KeyboardInterrupt
                frame = frame.f_back

        def interrupts():
            for number in range(100):
                pause.wait(0.0002 * (1 + number * 7919 % 13))
                os.kill(os.getpid(), signal.SIGINT)

        dataset = dataset({kind!r}) if {kind!r} == "ordered" else dataset({kind!r}).repeat(10)
        expected = [batch.tolist() for batch in dataset]
        signal.signal(signal.SIGINT, handle)
        pause = threading.Event()
        loader = ps.Loader(dataset, num_workers={workers})
        batches = iter(loader)
        thread = threading.Thread(target=interrupts)
        thread.start()
        rounds = 0
        while rounds == 0 or thread.is_alive():
            found = []
            while len(found) < len(expected):
                try:
                    found.append(next(batches).tolist())
                except KeyboardInterrupt:
                    pass
            if found != expected:
                print("other batches")
            rounds += 1
            while True:
                try:
                    loader.seek(0)
                    batches = iter(loader)
                    break
                except KeyboardInterrupt:
                    pass
        print(interrupted > 0)
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_stuck_function_does_not_keep_the_program() -> None:
    """A program that was interrupted while a worker waits for ever ends all the same."""
    command = program(INTERRUPTED.format(kind="indexed", workers=2, stuck=11))
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["ready\n", "stuck\n"]
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert "still inside a function of the dataset" in errors


STRUCK = """
import _thread, ctypes, dis
from pathlib import Path

LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")  # after these Python looks for signals
INSIDE = tuple(str(Path(ps.__file__).parent / folder) for folder in ("_loader", "_runtime"))

class Striking:
    # SIGINT arrives; its handler is called when Python looks for signals next, which it does not
    # after a negation, so it is not the tracing function that is interrupted.
    __neg__ = ctypes.PYFUNCTYPE(ctypes.c_int)(("PyErr_SetInterrupt", ctypes.pythonapi))

def trace(frame, event, argument):
    if not frame.f_code.co_filename.startswith(INSIDE):
        return None
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    back = frame.f_back
    if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(LOOKS):
        places.append((frame.f_code, frame.f_lasti, back.f_code, back.f_lasti))
        if len(places) == last:
            sys.settrace(None)
            -striking
    return trace

def handle(number, frame):
    while frame is not None:  # what comes when the loader has returned is the program's own affair
        if "penstock" in frame.f_code.co_filename:
            raise KeyboardInterrupt
        frame = frame.f_back

def interrupted(act):
    # As a user does who goes on.
    for _ in range(3):
        try:
            return act()
        except KeyboardInterrupt:
            pass
    raise AssertionError("one SIGINT is one KeyboardInterrupt")

def go_through():
    # The iterator is dropped where an interrupt is expected, too: it comes as soon as that is done.
    held = []
    interrupted(lambda: held.append(iter(loader)))
    found = [interrupted(lambda: next(held[0]).tolist()) for _ in expected]
    assert interrupted(lambda: next(held[0], None)) is None, "a batch more"
    interrupted(lambda: loader.seek(1))
    interrupted(held.clear)
    interrupted(lambda: held.append(iter(loader)))
    found += [interrupted(lambda: next(held[-1]).tolist()) for _ in expected[1:]]
    interrupted(held.clear)
    return found

def strike(place):
    global loader, places, last
    places, last = [], place
    threads = _thread._count()
    loader = ps.Loader(dataset, num_workers={workers})
    sys.settrace(trace)
    try:
        found = go_through()
    finally:
        sys.settrace(None)
    assert found == expected + expected[1:], (found, "other batches")
    interrupted(loader.close)  # what came while an iterator was dropped comes here
    while _thread._count() > threads:
        pass  # or while whoever tells of it is about to
    return places

striking = Striking()
signal.signal(signal.SIGINT, handle)
rows = ps.range(6, seed=1).shuffle()
dataset = rows.batch(2) if {kind!r} == "indexed" else rows.filter(keep).batch(2)
expected = [batch.tolist() for batch in dataset]
strike(0)
found = strike(0)
first = dict(reversed([(place, number) for number, place in enumerate(found, 1)]))
for number in sorted(first.values())[::{stride}]:
    try:
        strike(number)
    except BaseException as error:
        code, index, *_ = found[number - 1]
        line = [line for start, end, line in code.co_lines() if start <= index < end]
        print(f"struck in {{code.co_qualname}}, line {{line}}: {{error!r}}")
print(len(first) > 100)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_ctrl_c_at_every_place(kind: str, workers: int) -> None:
    """Interrupted once, at any instruction of the loader, an iterator that is kept gives every batch once, in order."""
    ended = run(STRUCK.format(kind=kind, workers=workers, stride=STRIDE))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
