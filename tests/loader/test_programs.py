"""A loader in a program that ends, forks, is interrupted or is killed: real processes, real signals."""

import os
import signal
import sys
import textwrap

import psutil
import pytest

from penstock._os import PROGRAM_ENDS
from tests.profiles import IS_LONG
from tests.programs.forked import Ended, Program, outcome, started
from tests.promptness import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("forked_programs")

STRIDE = 1 if IS_LONG else 23  # of the interrupted instructions

PREAMBLE = """
import asyncio, functools, os, signal, sys, threading, warnings
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
            return [loader, batches, []]
        may_place.set()
        next(batches)

def opened(dataset, **arguments):
    # Return a loader, its iterator and two kept batches.
    loader = ps.Loader(dataset, **arguments)
    batches = iter(loader)
    return [loader, batches, [next(batches), next(batches)]]
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
SLOW = "opened(ps.range(1_000_000).map(functions.slow).batch(4), workers='processes', {})"
ISOLATED, PROCESSES = SLOW.format("isolated=True"), SLOW.format("num_workers=1")
ASYNC = """
stuck_file = open(os.devnull, "w")
held = [opened(dataset("indexed")), opened(awaited("ordered")), opened(awaited("indexed", 100), num_workers=2)]
"""
THREADS = """
held = [opened(dataset("ordered"), num_workers=2), in_a_turn(num_workers=2)]
kept = [held[0].pop()]
threading.Timer(0, may_place.set).start()
"""
CLOSES = "for loader, *_ in held: loader.close()"
ENDING = {
    "inline, and with async sources": ASYNC,
    "threads": THREADS,
    "threads of a dropped loader": f"{THREADS}held.clear()",
    "threads of a closed loader": f"{THREADS}{CLOSES}",
    "stuck in a placement": "loader, batches, _ = in_a_turn(num_workers=1)",
    "processes": f"""
held = [{PROCESSES}]
{CLOSES}
held = [{PROCESSES}]
kept = [held[0].pop()]
held.clear()
held = [{ISOLATED}, {PROCESSES}]
""",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LINUX] if name == "processes" else []) for name in ENDING])
def test_a_program_ends_in_silence(name: str) -> None:
    """A program that ends while a loader works for it prints nothing, also if requests are never answered."""
    assert run(ENDING[name]) == (0, "", "")


def test_the_end_of_a_program_is_not_that_of_an_epoch() -> None:
    """A loop that goes on once the end of the program has closed its loader gets a ClosedError that says so."""
    ended = run(
        """
        import weakref

        def read_on():
            for loader, batches, _ in loaders:
                for use in (lambda: next(batches), lambda: iter(loader)):
                    try:
                        use()
                    except ps.errors.ClosedError as error:
                        errors.append(str(error))
            print(len(errors) == 2 * len(places), *set(errors))

        errors = []
        places = [{}, {"num_workers": 2}] + [{"isolated": True}] * hasattr(os, "memfd_create")
        at_exit = weakref.finalize(ps, read_on)  # called after those of the loaders, which are newer
        loaders = [opened(dataset("indexed"), **place) for place in places]
        """
    )
    assert ended == (0, f"True {PROGRAM_ENDS}\n", "")


def test_an_uncaught_error_is_one_traceback() -> None:
    """A function's uncaught error is printed once, with its note, and nothing else is."""
    ended = run(
        """
        def fails(number):
            if number == 7:
                raise KeyError("no such image")
            return number
        for batch in ps.Loader(dataset("indexed", fails), num_workers=2):
            pass
        """
    )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert ended.stderr.count("KeyError: 'no such image'") == 1
    assert ended.stderr.count("in step 'fails' at epoch 0, position") == 1


@FORKS
def test_a_fork_can_not_use_a_started_loader() -> None:
    """In a fork, a loader with threads raises a ClosedError; the child ends cleanly and the parent continues."""
    ended = run(
        """
        held = [opened(dataset(kind), num_workers=2) for kind in ("indexed", "ordered")] + [in_a_turn(num_workers=1)]
        child = os.fork()
        if child == 0:
            refused = 0
            for loader, batches, _ in held:
                for use in (lambda: next(batches), lambda: iter(loader)):
                    try:
                        for _ in range(100):
                            use()
                    except ps.errors.ClosedError as error:
                        refused += "before a fork" in str(error) or "newer iter" in str(error)
                loader.state_dict()
                loader.stats()
                del batches
                loader.close()
            sys.exit(10 + refused)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        may_place.set()
        print(*(4 * loader.steps_done + sum(map(len, batches)) for loader, batches, _ in held))
        """
    )
    assert ended == (0, "16\n400 400 400\n", "")


@FORKS
def test_a_fork_may_make_a_loader_of_its_own() -> None:
    """A loader that was not started before the fork, an inline loader, and an async source that was read, work."""
    ended = run(
        """
        inline = ps.Loader(dataset("indexed"))
        started_later = ps.Loader(dataset("indexed"), num_workers=2)
        next(iter(inline))
        asked = awaited("indexed")
        before = [batch.tolist() for batch in asked]
        child = os.fork()
        if child == 0:
            same = all(np.array_equal(a, b) for a, b in zip(started_later, dataset("indexed"), strict=True))
            readers = [ps.Loader(asked), asked]
            readers += [ps.Loader(asked, num_workers=2)]  # made by another line, which has no hint
            also = all([batch.tolist() for batch in batches] == before for batches in readers)
            sys.exit(20 + same + (len(list(inline)) == 100) + also)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), [batch.tolist() for batch in asked] == before)
        """
    )
    assert ended == (0, "23 True\n", "")


@FORKS
@LINUX
def test_a_fork_can_not_use_the_processes_of_a_loader() -> None:
    """In a fork, `next` raises a ClosedError after the batches that were there, and the parent's continue."""
    ended = run(
        f"""
        held = [{ISOLATED}, {PROCESSES}, in_a_turn(num_workers=1, isolated=True)]
        child = os.fork()
        if child == 0:
            for (loader, batches, _), most in zip(held, (0, 100, 0)):
                try:
                    for _ in range(most + 1):
                        next(batches)
                except ps.errors.ClosedError as error:
                    print("before a fork" in str(error), flush=True)
                loader.close()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *(next(held[k][1]).tolist() for k in (0, 1)))
        loader, batches, _ = held[2]
        may_place.set()
        print(4 * loader.steps_done + sum(map(len, batches)))
        """
    )
    assert ended == (0, "True\nTrue\nTrue\n7 [8, 9, 10, 11] [8, 9, 10, 11]\n400\n", "")


@FORKS
@LINUX
def test_a_fork_keeps_the_batches_that_it_has() -> None:
    """A forked child has its batch of worker processes as it was, though the parent drops it and reads on."""
    ended = run(
        """
        rows = ps.range(400).map(functools.partial(np.full, 20_000))
        for dataset in (rows.batch(1), rows.batch(1).map(abs), rows):
            batches = iter(ps.Loader(dataset, num_workers=1, workers="processes"))
            batch = next(batches)
            waits, goes = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(goes)
                os.read(waits, 1)
                print(batch.min(), batch.max(), flush=True)
                os._exit(0)
            for _ in range(40):
                batch = next(batches)
            os.close(goes)
            os.waitpid(child, 0)
        """
    )
    assert ended == (0, "0 0\n" * 3, "")


@LINUX
def test_an_error_for_lack_of_descriptors_names_kept_batches() -> None:
    """A program that keeps more large batches of worker processes than it may have descriptors learns the remedy."""
    ended = run(
        """
        import resource
        warnings.simplefilter("ignore")
        loader = ps.Loader(ps.range(400).map(functools.partial(np.full, 1 << 18)), num_workers=1, workers="processes")
        batches = iter(loader)
        kept = [next(batches) for _ in range(9)]
        most = len(os.listdir("/proc/self/fd")) + 9
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            kept.extend(batches)
        except OSError as error:
            text = " ".join([str(error), *error.__notes__])
            print("ulimit -n" in text, "keep" in text)
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "True True\n"), ended


LOOP = """
from penstock._runtime import _worker_threads
if {stuck} >= 0:
    _worker_threads.FUNCTION_SECONDS = 0.1  # at its end, the program waits so long for the stuck function
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
WAIT = """
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
for batch in ps.Loader(awaited({kind!r}, 8), num_workers={workers}):
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
@pytest.mark.parametrize(("kind", "workers"), [("indexed", 2), ("ordered", 0)])
@pytest.mark.parametrize(("text", "lines"), [(LOOP, 1), (WAIT, 2)], ids=["a loop", "a wait for an answer"])
def test_ctrl_c_ends_a_program(kind: str, workers: int, text: str, lines: int) -> None:
    """SIGINT at any moment, also while a server doesn't answer, ends a program by one KeyboardInterrupt, at once."""
    with start(text.format(kind=kind, workers=workers, stuck=-1)) as program:
        assert [line_of(program) for _ in range(lines)] == ["ready\n", "stuck\n"][:lines]
        check_interrupted(program)


READS_FROM_PROCESSES = f"""
signal.signal(signal.SIGINT, signal.default_int_handler)
held = [{SLOW.format("isolated=True, num_workers=1")}, {PROCESSES}]
print("ready", flush=True)
for batches in zip(*(batches for _, batches, _ in held)): pass
"""


@LINUX
def test_ctrl_c_ends_a_program_with_processes() -> None:
    """SIGINT to all processes of the terminal is one KeyboardInterrupt in one traceback: the program's."""
    with start(READS_FROM_PROCESSES) as program:
        assert line_of(program) == "ready\n"
        check_interrupted(program, group=True)


@LINUX
def test_the_processes_of_a_killed_program_end() -> None:
    """The workers and the helper of a program that was killed end by themselves, and so do the helper's workers."""
    with start(READS_FROM_PROCESSES) as program:
        assert line_of(program) == "ready\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) >= 4
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []


def test_a_stuck_function_does_not_keep_the_program() -> None:
    """A program that was interrupted while a worker waits for ever ends."""
    with start(LOOP.format(kind="indexed", workers=2, stuck=11)) as program:
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
@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["ordered", "indexed"])
@pytest.mark.parametrize(
    ("rows", "loader", "workers"),
    [
        (NUMBERS, "PlacedInTurns", 2),
        *((rows, "ps.Loader", workers) for rows in (NUMBERS, AWAITED) for workers in (0, 2)),
    ],
)
def test_ctrl_c_at_every_instruction(kind: str, rows: str, loader: str, workers: int) -> None:
    """Interrupted once, at any instruction of the loader, a kept iterator delivers every batch once, in order."""
    ended = run(STRUCK.format(kind=kind, rows=rows, loader=loader, workers=workers, stride=STRIDE))
    assert ended == (0, "True\n", "")
