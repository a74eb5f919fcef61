"""A pipeline delays no end of its process (interpreter exit, fork, Ctrl-C), and prints nothing then."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from penstock.pipeline import PipelineBuilder
from tests.programs import forked
from tests.programs.forked import Ended
from tests.promptness import is_prompt

pytestmark = pytest.mark.usefixtures("forked_programs")
PATIENCE_SECONDS = 100.0
PROMPTLY_SECONDS = 5.0
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there are no forks and POSIX signals here")

HEAD = """
import asyncio, gc, itertools, os, signal, sys, threading, warnings
from penstock.errors import PenstockError, UsageError
from penstock.pipeline import PipelineBuilder

warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of every fork while threads run
never = threading.Event()

def stuck(item):
    if item == 3:
        never.wait()
    return item

async def stuck_async(item):
    if item == 3:
        await asyncio.get_running_loop().create_future()
    return item

class Blocked:
    def __iter__(self):
        yield from range(3)
        never.wait()

def build(source=None, op=abs, **how):
    builder = PipelineBuilder().add_source(itertools.count() if source is None else source)
    return builder.pipe(op, **how).pipe(abs, concurrency=2, output_order="input").add_sink(2).build(num_threads=2)
"""


def outcome(program: str) -> Ended:
    """Run a program to its end, which doesn't take long."""
    began = time.monotonic()
    ended = forked.outcome(HEAD + textwrap.dedent(program))
    assert is_prompt(time.monotonic() - began, PROMPTLY_SECONDS)
    return ended


RUNNING, STUCK, STUCK_ASYNC, BLOCKED = "build()", "build(op=stuck)", "build(op=stuck_async)", "build(Blocked())"
READ_SOME = "pipeline.start()\nprint([pipeline.get_item(timeout=10) for _ in range(3)])"


@pytest.mark.parametrize(
    ("built", "rest", "ended"),
    [
        (RUNNING, f"{READ_SOME}\ncycle = [pipeline]; cycle.append(cycle)", (0, "[0, 1, 2]\n", "")),
        (STUCK, f"{READ_SOME}\ndef late(kept=pipeline): ...", (0, "[0, 1, 2]\n", "")),
        (STUCK_ASYNC, READ_SOME, (0, "[0, 1, 2]\n", "")),
        (BLOCKED, READ_SOME, (0, "[0, 1, 2]\n", "")),
        # Its traceback keeps the iterator.
        (STUCK, "for item in pipeline:\n    if item == 2: raise SystemExit(5)", (5, "", "")),
    ],
)
def test_the_interpreter_ends(built: str, rest: str, ended: tuple[int, str, str]) -> None:
    """A program that doesn't stop its pipeline, running or stuck, ends at once and prints nothing."""
    assert outcome(f"pipeline = {built}\n{rest}") == ended


@POSIX
@pytest.mark.parametrize("built", [RUNNING, pytest.param(STUCK, marks=pytest.mark.long), BLOCKED])  # both wait
def test_a_forked_child(built: str) -> None:
    """A child can use no pipeline of its parent, running or new, but one of its own; the parent's continues."""
    program = f"""
    pipeline, new = {built}, build(range(3))
    iterator = iter(pipeline)
    print([next(iterator) for _ in range(2)], flush=True)
    child = os.fork()
    if child == 0:
        for call in (lambda: pipeline.get_item(timeout=1), lambda: next(iterator), pipeline.start, new.start):
            try:
                call()
            except UsageError as error:
                print("UsageError", flush=True)
        try:
            pipeline.stop()
        except UsageError:
            pass
        del pipeline, iterator, call
        gc.collect()
        with build(range(4)).auto_stop() as own:
            print([*own], flush=True)
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(next(iterator))
    with new.auto_stop():
        print([*new])
    """
    refused = 4 * "UsageError\n"
    assert outcome(program) == (0, f"[0, 1]\n{refused}[0, 1, 2, 3]\n7\n2\n[0, 1, 2]\n", "")


@POSIX
@pytest.mark.parametrize("how", ["build().auto_stop()", "run_in_subprocess(config, num_threads=1).auto_stop()"])
def test_a_forked_child_leaves_the_block(how: str) -> None:
    """A child that leaves the block of its parent's pipeline by an exception raises that one."""
    program = f"""
    from penstock.pipeline import run_in_subprocess
    config = PipelineBuilder().add_source(range(3)).add_sink().get_config()
    with {how} as pipeline:
        print(pipeline.get_item(), flush=True)
        child = os.fork()
        if child == 0:
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(pipeline.get_item())
    """
    assert outcome(program) == (0, "0\n7\n1\n", "")


READS = {
    "for": "for item in pipeline: note(item)",
    "get_item": "while True: note(pipeline.get_item())",
    "get_item with a time-out": "while True: note(pipeline.get_item(timeout=100))",
    "auto_stop": "with pipeline.auto_stop():\n        for item in pipeline: note(item)",
}


@POSIX
@pytest.mark.parametrize(
    ("built", "read"),
    [
        (RUNNING, "for"),
        (BLOCKED, "for"),
        (STUCK, "get_item"),
        (STUCK, "get_item with a time-out"),
        (STUCK_ASYNC, "auto_stop"),
    ],
)
def test_ctrl_c(built: str, read: str) -> None:
    """SIGINT during a read or between reads ends the program at once, by one KeyboardInterrupt."""
    program = f"""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def note(item):
        if item == 2:
            print("read", flush=True)
    pipeline = {built}
    {READS[read]}
    """
    with forked.started(HEAD + textwrap.dedent(program)) as process:
        assert process.stdout.readline() == "read\n"
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)  # meanwhile it waits for the next item
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
        assert is_prompt(time.monotonic() - began, PROMPTLY_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode in {-signal.SIGINT, 130}


@POSIX
def test_an_interrupted_stop_can_be_called_again() -> None:
    """Ctrl-C ends the wait of `stop`, but not the stage for which it waits; the next `stop` waits for that."""
    entered, cancelled, let_go = threading.Event(), threading.Event(), threading.Event()

    async def hold(item: int) -> int:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
            let_go.wait(PATIENCE_SECONDS)
        return item

    def press() -> None:
        if cancelled.wait(PATIENCE_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    pipeline = PipelineBuilder().add_source([1]).pipe(hold).add_sink().build(num_threads=1)
    pipeline.start()
    assert entered.wait(PATIENCE_SECONDS)
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.stop()
    pressing.join()
    with pytest.raises(TimeoutError):
        pipeline.stop(timeout=0.05)
    let_go.set()
    pipeline.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-loop"]
