"""A loader in a program that ends, forks, is interrupted or is killed: real processes, real signals."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from penstock._os import PROGRAM_ENDS
from tests.profiles import IS_LONG
from tests.programs.forked import Ended, Program, outcome, started
from tests.promptness import PATIENCE_SECONDS

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("forked_programs")]

STRIDE = 1 if IS_LONG else 7  # of the interrupted instructions

PREAMBLE = """
import asyncio, os, signal, sys, threading, warnings
import numpy as np
import penstock as ps
from tests.loader.placing.loaders import PlacedByThread
from tests.workers.processes import functions

# Since Python 3.12, a process that has threads, and forks.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

def keep(number):
    return True

def batched(rows, kind):
    return rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)

def dataset(kind, function=abs):
    return batched(ps.range(400, seed=1).shuffle().map(function), kind)

class Awaited:
    # An async source of numbers; requests from `stuck` on are never answered.
    def __init__(self, length, stuck=1 << 30):
        self.length, self.stuck = length, stuck

    def __len__(self):
        return self.length

    async def read(self, keys):
        if keys.max() >= self.stuck:
            print("stuck", file=stuck_file, flush=True)
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return [int(key) for key in keys]

stuck_file = sys.stdout

def awaited(kind, stuck=1 << 30):
    rows = ps.read(Awaited(400, stuck), seed=1)
    return batched(rows.shuffle() if stuck > 400 else rows, kind)

begun, may_place = threading.Event(), threading.Event()
may_place.set()

class PlacedInTurns(PlacedByThread):
    def _place_in_thread(self, batch):
        begun.set()
        may_place.wait()
        return self._place(batch)

def in_a_turn(**arguments):
    # Return a loader whose thread is placing a batch, and its iterator. The thread may place while `next` waits for it.
    loader = PlacedInTurns(dataset("indexed"), **arguments)
    batches = iter(loader)
    while True:
        may_place.clear()
        begun.clear()
        if begun.wait(0.01):
            return loader, batches
        may_place.set()
        next(batches)

def opened(dataset, **arguments):
    # Return a loader, its iterator and two kept batches.
    loader = ps.Loader(dataset, **arguments)
    batches = iter(loader)
    return loader, batches, [next(batches), next(batches)]
"""


def whole(text: str) -> str:
    """Return a program with the preamble; processes of its own don't run it again."""
    return f"{PREAMBLE}if __name__ == '__main__':\n{textwrap.indent(textwrap.dedent(text).strip(), '    ')}\n"


def run(text: str) -> Ended:
    """Run a program to its end."""
    return outcome(whole(text))


def start(text: str) -> Program:
    """Start a program."""
    return started(whole(text))


def line_of(program: Program) -> str:
    """Return the next line that a program prints."""
    return program.stdout.readline()


LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
SIGNALS = pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
WORKERS = pytest.mark.parametrize("workers", [0, 2])
KINDS = pytest.mark.parametrize("kind", ["indexed", "ordered"])
SLOW = "opened(ps.range(1_000_000).map(functions.slow).batch(4), workers='processes', {})"
ISOLATED, PROCESSES = SLOW.format("isolated=True"), SLOW.format("num_workers=2")
IN_PROCESSES = pytest.mark.parametrize(
    "opened", [SLOW.format("isolated=True, num_workers=1"), PROCESSES], ids=["isolated", "processes"]
)
RUNNING = {
    "inline": "loader, batches, kept = opened(dataset('indexed'))",
    "threads": "loader, batches, kept = opened(dataset('ordered'), num_workers=2)",
    "async source, inline": "loader, batches, kept = opened(awaited('ordered'))",
    "async source, threads": "stuck_file = open(os.devnull, 'w')\n"
    "loader, batches, kept = opened(awaited('indexed', 100), num_workers=2)",
    "placed by a thread": "loader, batches = in_a_turn(num_workers=2)\nthreading.Timer(0, may_place.set).start()",
    "stuck in a placement": "loader, batches = in_a_turn(num_workers=1)",
    "isolated": f"loader, batches, kept = {ISOLATED}",
    "processes": f"loader, batches, kept = {PROCESSES}",
}
ENDS = ["", "del loader, batches", "loader.close()"]
OFTEN = {"threads", "placed by a thread", "processes"}


PROGRAMS = {
    f"{place} {end}": f"{text}\n{end}" for place, text in RUNNING.items() for end in (ENDS if place in OFTEN else [""])
}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=[LINUX] if name.startswith(("isolated", "processes")) else [])
        for name, text in PROGRAMS.items()
    ],
)
def test_a_program_ends_in_silence(text: str) -> None:
    """A program that ends while a loader works for it prints nothing, also if requests are never answered."""
    ended = run(text)
    assert ended == (0, "", "")


@pytest.mark.parametrize(
    "arguments",
    ["", "num_workers=2", pytest.param("isolated=True", marks=LINUX)],
    ids=["inline", "threads", "isolated"],
)
def test_the_end_of_a_program_is_not_that_of_an_epoch(arguments: str) -> None:
    """A loop that goes on once the end of the program has closed its loader gets a ClosedError that says so."""
    ended = run(
        f"""
        import weakref

        def read_on():
            for use in (lambda: next(batches), lambda: iter(loader)):
                try:
                    use()
                except ps.errors.ClosedError as error:
                    print(error)

        at_exit = weakref.finalize(ps, read_on)  # called after those of the loader, which are newer
        loader, batches, kept = opened(dataset("indexed"), {arguments})
        """
    )
    assert ended == (0, f"{PROGRAM_ENDS}\n" * 2, "")


@WORKERS
def test_an_uncaught_error_is_one_traceback(workers: int) -> None:
    """A function's uncaught error is printed once, with its note, and nothing else is."""
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


@FORKS
@KINDS
def test_a_fork_can_not_use_a_started_loader(kind: str) -> None:
    """In a fork, a loader with threads raises a ClosedError; the child ends cleanly and the parent continues."""
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
    assert ended == (0, "12 400\n", "")


@FORKS
def test_a_fork_may_make_a_loader_of_its_own() -> None:
    """A loader that was not started before the fork, and an inline loader, work in the child."""
    ended = run(
        """
        inline = ps.Loader(dataset("indexed"))
        started_later = ps.Loader(dataset("indexed"), num_workers=2)
        next(iter(inline))
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(a, b) for a, b in zip(started_later, dataset("indexed"), strict=True))
            sys.exit(20 + same + (len(list(inline)) == 100))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert ended == (0, "22\n", "")


@FORKS
@WORKERS
def test_a_fork_has_an_event_loop_of_its_own(workers: int) -> None:
    """A source that was read before a fork is read in the child too, and still in the parent."""
    ended = run(
        f"""
        dataset = awaited("indexed")
        before = [batch.tolist() for batch in dataset]
        child = os.fork()
        if child == 0:
            loader = ps.Loader(dataset, num_workers={workers})
            same = [batch.tolist() for batch in loader] == before == [batch.tolist() for batch in dataset]
            sys.exit(20 + same)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), [batch.tolist() for batch in dataset] == before)
        """
    )
    assert ended == (0, "21 True\n", "")


@FORKS
@LINUX
@pytest.mark.parametrize("isolated", [False, True])
def test_a_fork_can_not_use_a_loader_with_a_placement_thread(isolated: bool) -> None:  # noqa: FBT001 - a parameter
    """In a fork, which has no such thread, `next` raises a ClosedError; the child ends and the parent continues."""
    ended = run(
        f"""
        loader, batches = in_a_turn(num_workers=1, isolated={isolated})
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except ps.errors.ClosedError as error:
                print("before a fork" in str(error), flush=True)
            loader.state_dict()
            del batches
            loader.close()
            sys.exit(10)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        step = loader.step
        may_place.set()
        print(sum(len(batch) for batch in batches) + 4 * (step + 1) == 400)
        """
    )
    assert ended == (0, "True\n10\nTrue\n", "")


@FORKS
@LINUX
@pytest.mark.parametrize(("opened", "most"), [(ISOLATED, 0), (PROCESSES, 100)], ids=["isolated", "processes"])
def test_a_fork_can_not_use_the_processes_of_a_loader(opened: str, most: int) -> None:
    """In a fork, `next` raises a ClosedError after the batches that were there, and the parent's continue."""
    ended = run(
        f"""
        loader, batches, kept = {opened}
        child = os.fork()
        if child == 0:
            try:
                for _ in range({most} + 1):
                    next(batches)
            except ps.errors.ClosedError:
                loader.close()
                sys.exit(7)
            sys.exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(batches).tolist())
        """
    )
    assert ended == (0, "7 [8, 9, 10, 11]\n", "")


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)
late = threading.Event()

def slow(number):
    if number == {stuck}:
        print("stuck", flush=True)
        late.wait()
    return number

# Everything is imported at the first use: an interrupted import that handles an error of its own prints both.
for batch in ps.Loader(dataset({kind!r}, abs if {stuck} >= 0 else slow), num_workers={workers}):
    pass
print("ready", flush=True)
while True:
    for batch in ps.Loader(dataset({kind!r}, slow), num_workers={workers}):
        pass
"""


def check_interrupted(program: Program, *, group: bool = False) -> None:
    """Send SIGINT to a program, or to its whole session, and check that it ends by one KeyboardInterrupt."""
    (os.killpg if group else os.kill)(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {-signal.SIGINT, 130}


@SIGNALS
@WORKERS
@KINDS
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_ctrl_c_ends_a_program(kind: str, workers: int, turns: int) -> None:
    """SIGINT at any moment ends a training loop by one KeyboardInterrupt."""
    with start(INTERRUPTED.format(kind=kind, workers=workers, stuck=-1)) as program:
        assert line_of(program) == "ready\n"
        for _ in range(turns):  # other moments of the loop: as long as the start of another process takes
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        check_interrupted(program)


@SIGNALS
@WORKERS
@KINDS
def test_ctrl_c_ends_a_wait_for_an_answer(kind: str, workers: int) -> None:
    """SIGINT while a server doesn't answer ends the program by one KeyboardInterrupt, at once."""
    text = f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for batch in ps.Loader(awaited({kind!r}, 8), num_workers={workers}):
        pass
    """
    with start(text) as program:
        assert line_of(program) == "stuck\n"
        check_interrupted(program)


@LINUX
@IN_PROCESSES
def test_ctrl_c_ends_a_program_with_processes(opened: str) -> None:
    """SIGINT to all processes of the terminal is one KeyboardInterrupt in one traceback: the program's."""
    text = f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader, batches, kept = {opened}
    print("ready", flush=True)
    for batch in batches: pass
    """
    with start(text) as program:
        assert line_of(program) == "ready\n"
        check_interrupted(program, group=True)


@LINUX
@IN_PROCESSES
def test_the_processes_of_a_killed_program_end(opened: str) -> None:
    """The workers or the helper of a program that was killed end by themselves, and so do the helper's workers."""
    text = f"""
    loader, batches, kept = {opened}
    print("ready", flush=True)
    for batch in batches: pass
    """
    with start(text) as program:
        assert line_of(program) == "ready\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) >= 2
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []


@SIGNALS
@WORKERS
@KINDS
def test_many_interrupts_lose_no_batch(kind: str, workers: int) -> None:
    """A kept iterator that is interrupted at random moments delivers every batch once, in order."""
    ended = run(
        f"""
        interrupted = 0

        def handle(number, frame):
            # Only inside the loader: an interrupt of this program's loop is its own affair.
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
    assert ended == (0, "True\n", "")


def test_a_stuck_function_does_not_keep_the_program() -> None:
    """A program that was interrupted while a worker waits for ever ends."""
    with start(INTERRUPTED.format(kind="indexed", workers=2, stuck=11)) as program:
        assert [line_of(program), line_of(program)] == ["ready\n", "stuck\n"]
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert "still inside a function of the dataset" in errors


STRUCK = """
import _thread, ctypes, dis, logging
from pathlib import Path

logging.getLogger("penstock").setLevel(logging.ERROR)  # its loaders repeat epoch 0 on purpose

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
    while frame is not None:  # an interrupt after the loader has returned is the program's own
        if "penstock" in frame.f_code.co_filename:
            raise KeyboardInterrupt
        frame = frame.f_back

def interrupted(act):
    # Try again, as a user may.
    for _ in range(3):
        try:
            return act()
        except KeyboardInterrupt:
            pass
    raise AssertionError("one SIGINT is one KeyboardInterrupt")

def go_through():
    # The iterator is dropped inside `interrupted`, too: an interrupt that was held is raised right after.
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
    loader = {loader}(dataset, num_workers={workers})
    sys.settrace(trace)
    try:
        found = go_through()
    finally:
        sys.settrace(None)
    assert found == expected + expected[1:], (found, "other batches")
    interrupted(loader.close)  # raises an interrupt that came while an iterator was dropped
    while _thread._count() > threads:
        pass  # a thread of the loader is about to end
    return places

striking = Striking()
signal.signal(signal.SIGINT, handle)
rows = {rows}.shuffle()
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


NUMBERS, AWAITED = "ps.range(6, seed=1)", "ps.read(Awaited(6), seed=1)"


@SIGNALS
@KINDS
@pytest.mark.parametrize(
    ("rows", "loader", "workers"),
    [
        *((rows, "ps.Loader", workers) for rows in (NUMBERS, AWAITED) for workers in (0, 2)),
        (NUMBERS, "PlacedInTurns", 2),
    ],
)
def test_ctrl_c_at_every_instruction(kind: str, rows: str, loader: str, workers: int) -> None:
    """Interrupted once, at any instruction of the loader, a kept iterator delivers every batch once, in order."""
    ended = run(STRUCK.format(kind=kind, rows=rows, loader=loader, workers=workers, stride=STRIDE))
    assert ended == (0, "True\n", "")
