"""`penstock watch` shows the loaders of any running program, and ends with it or with Ctrl-C."""

import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._live_page import LivePage, pages_of
from penstock._loader import _publisher
from penstock.observe._live import Window, report_between, summary
from penstock.observe._sums import Sums
from tests.cli.command import main
from tests.programs.forked import started

Output = pytest.CaptureFixture[str]
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads the folder /proc")

COMMAND = [sys.executable, "-m", "penstock", "watch"]
TRAINING = """
import threading
import penstock as ps

def decode(number):
    threading.Event().wait(0.004)
    return number

dataset = ps.range(100_000, seed=7).shuffle().map(decode).batch(8)
with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
    for step, _ in enumerate(loader):
        if step == 20:
            print("ready", flush=True)
"""


def take_terminal() -> None:
    """Make the terminal of stdin send this new process the signal of Ctrl-C."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def views_of(pid: int, columns: tuple[int, int]) -> tuple[int, list[str]]:
    """Return the status of `penstock watch` in a terminal that gets another width, and the views until Ctrl-C."""
    master, slave = pty.openpty()
    set_columns(slave, columns[0])
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    # An interval of many jobs, also on a busy machine: what limits the program is that of the last interval.
    command = [*COMMAND, str(pid), "--interval", "0.6"]
    text, end = "", "\x1b[J"
    streams: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave, "env": environment | {"TERM": "xterm"}}
    with subprocess.Popen(command, **streams, preexec_fn=take_terminal) as program:
        os.close(slave)
        steps: list[Any] = [partial(set_columns, master, columns[1]), partial(os.write, master, b"\x03")]
        seen = 0
        while select.select([master], [], [], 20)[0]:
            try:
                text += os.read(master, 1 << 16).decode()
            except OSError:  # the terminal's last program has ended
                break
            if steps and text.count(end) >= seen + 2:  # on a busy machine there may be many views in one read
                seen = text.count(end)
                steps.pop(0)()
    os.close(master)
    return program.returncode, text.split(end)


def set_columns(terminal: int, columns: int) -> None:
    """Set the width of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


@pytest.mark.usefixtures("forked_programs")
def test_a_program_is_watched_until_it_ends(capsys: Output) -> None:
    """Each view is drawn in the place of the last one and fits the terminal; a file gets lines, or one view.

    Ctrl-C ends the view with status 0. A training that is killed leaves nothing behind, and a line says so.
    """
    with started(TRAINING) as program:
        assert program.stdout.readline() == "ready\n"
        pid = str(program.pid)
        # On a busy machine the program may have had no processor in the last interval.
        assert any("decode" in limit for _ in range(3) for limit in limits_of(program.pid))
        assert main(["watch", pid, "--once"]) == 0
        text = capsys.readouterr().out
        assert f"pid {pid}  {sys.executable} -c" in text
        assert "\x1b" not in text
        assert re.search(r"epoch +━*─* *0, step [0-9,]+ \(\d+%\), [0-9:]+ left", text)
        assert re.search(r"workers +━+─* *\d+% busy, 2 threads", text)
        assert main(["watch", "--once"]) == 0  # the loaders of all programs
        assert f"pid {pid} " in capsys.readouterr().out
        watching = ["watch", pid, "--interval", "0.05"]
        with started(f"from tests.cli.command import main; raise SystemExit(main({watching}))") as watch:
            line = watch.stdout.readline()
            program.kill()
            *_, last = watch.stdout
    figures = rf"pid {pid}: epoch 0, step [\d,]+ \(\d+%\); [0-9.]+ batches/s; waiting \d+%: "
    assert re.match(rf"\d\d:\d\d:\d\d {figures}", line)
    assert last == f"process {pid} has ended\n"
    assert watch.returncode == 0
    assert main(["watch", pid]) == 2
    assert f"there is no process {pid}" in capsys.readouterr().err


def limits_of(pid: int) -> list[str]:
    """Check the views in a terminal, which becomes narrower; return the lines that say what limits the program."""
    limits: list[str] = []
    status, [first, second, *_, last, rest] = views_of(pid, (80, 40))
    assert (status, rest.replace("^C", "")) == (0, "")
    for view, columns in ((first, 80), (second, 80), (last, 40)):
        lines = re.sub(r"\x1b\[[0-9]*[A-Z]", "", view).strip().splitlines()
        assert max(map(len, lines)) < columns
        shown = {line.split()[0]: line for line in lines}
        assert {"pid", "epoch", "rate", "waiting", "workers", "slowest", "memory", "limit", "change"} <= shown.keys()
        assert ("━" in shown["waiting"]) == (columns == 80)
        limits.append(shown["limit"])
        assert "…" not in "".join(line for line in lines[2:] if not line.startswith("slowest"))
    assert second.startswith(f"\x1b[{first.count(chr(10))}A\r")
    return limits


def test_a_process_without_a_loader_is_refused(capsys: Output) -> None:
    """A wrong number is an error of the call, and a program without a loader is named."""
    with pytest.raises(SystemExit, match="2"):
        main(["watch", "0"])
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        assert main(["watch", str(other.pid)]) == 1
        assert f"process {other.pid} (cat) has no loader that runs" in capsys.readouterr().err
        other.communicate()


def test_no_reader_sees_a_page_that_is_half_written() -> None:
    """While a thread writes texts of many lengths, each text that is read is one of them."""
    page = LivePage()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            page.write(json.dumps({"pid": os.getpid(), "number": number, "rest": "x" * (number % 3000)}).encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        numbers: list[int] = []
        while len(numbers) < 300 or len(set(numbers)) < 10:  # a busy machine writes seldom
            for seen in pages_of(os.getpid()).pages:
                assert len(seen.values["rest"]) == seen.values["number"] % 3000
                numbers.append(seen.values["number"])
    finally:
        stop.set()
        writer.join()


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a page at the first batch, too."""
    monkeypatch.setattr(_publisher, "_EACH_SECONDS", 0.0)


def own_sums(ahead: float = 0.0) -> Sums:
    """Return the sums of this process's only loader, as seen so many seconds later."""
    (page,) = pages_of(os.getpid()).pages
    return Sums.seen(page, time.perf_counter() + ahead)


@pytest.mark.usefixtures("written_at_once")
def test_the_page_has_the_position_at_the_end_of_epochs_that_take_less_than_a_write() -> None:
    """An epoch of a millisecond, read to its end or left after three batches, and then a whole one."""
    for epoch, left_after in ((0, 0), (1, 3)):
        with ps.Loader(ps.range(40).batch(8)) as loader:
            for _ in itertools.chain(itertools.islice(loader, left_after), loader):
                pass
            sums = own_sums()
        assert sums.position == (epoch, left_after + 5, 5, 5)
        assert (sums.batches, sums.rows) == (left_after + 5, 8)


@pytest.mark.usefixtures("written_at_once")
def test_steps_with_long_names_have_times_of_their_own() -> None:
    """A page shortens names at the begin, each step has another one, and times of a window are those of the steps."""

    def decode_image(number: int) -> int:
        return number

    def augment_image(number: int) -> int:
        return number + 1

    dataset = ps.range(40).map(decode_image).map(augment_image).map(str, name="x" * 60).map(str, name="y" + "x" * 60)
    with ps.Loader(dataset) as loader:
        next(iter(loader))
        sums = own_sums()
    names = [step.name for step in sums.steps]
    assert {"…decode_image", "…augment_image"} <= set(names)
    assert len(set(names)) == len(names)
    taken = tuple(step._replace(seconds=step.seconds + number) for number, step in enumerate(sums.steps, 1))
    later = sums._replace(at=sums.at + 1, made=sums.made + 1, steps=taken)
    assert [round(step.seconds) for step in report_between(sums, later).steps] == [*range(1, len(names) + 1)]


def test_a_wait_that_lasts_is_shown_and_a_fork_has_no_page() -> None:
    """A consumer that waits for long is shown with the step; a forked child is not shown in its parent's place."""
    gate, reached = threading.Event(), threading.Event()

    def hang(number: int) -> int:
        if number == 32:
            reached.set()
            gate.wait()
        return number

    with ps.Loader(ps.range(64).map(hang).batch(4), num_workers=1, workers="threads", prefetch=1) as loader:
        consumer = threading.Thread(target=list, args=(loader,))
        consumer.start()
        try:
            assert reached.wait(20)
            pages = pages_of(os.getpid()).pages
            while not pages or not pages[0].waiting_since:  # the first page of threads is made in a wait of 0.1 s
                pages = pages_of(os.getpid()).pages
            sums = own_sums(ahead=100)
            assert re.search(r"waiting for step \d for 1:4\d$", summary(sums, Window().add(sums)))
            ends, end = os.pipe()
            child = os.fork()
            if child == 0:
                os.read(ends, 1)
                os._exit(0)
            assert pages_of(child).pages == ()
            os.write(end, b"x")
            assert os.waitpid(child, 0)[1] == 0
            os.close(ends)
            os.close(end)
        finally:
            gate.set()
            consumer.join()
    assert pages_of(os.getpid()).pages == ()


def test_threads_that_hold_the_interpreters_lock_are_seen_from_outside() -> None:
    """The page has the time for which threads wait for the lock, so the view has it, too."""

    def hold(number: int) -> int:
        ends = time.thread_time() + 0.02
        while time.thread_time() < ends:
            pass
        return number

    waits = 0.0
    with ps.Loader(ps.range(2_000).map(hold, name="hold").batch(4), num_workers=2, workers="threads") as loader:
        for _ in loader:
            for page in pages_of(os.getpid()).pages:
                waits = Window().add(Sums.seen(page, time.perf_counter())).lock_wait_seconds
            if waits > 0:
                break
    assert waits > 0


class Numbers:
    """A source that counts how often its text is made, which may take long."""

    texts = 0

    def __len__(self) -> int:
        return 640

    def __getitem__(self, key: int) -> int:
        return key

    def __repr__(self) -> str:
        Numbers.texts += 1
        return "Numbers()"


def test_a_script_shows_its_own_loader(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """`loader.watch` prints lines to stderr while the block runs, and one about the whole time at its end.

    A program without a console has None for stderr; its block runs.
    """
    pause = threading.Event()
    with ps.Loader(ps.read(Numbers()).batch(8)) as loader, loader.watch(interval=0.05):
        for _ in loader:
            pause.wait(0.01)
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines
    assert Numbers.texts <= 2
    assert all(re.match(r"epoch 0, step \d+ \(\d+%\); [0-9.]+ batches/s; waiting \d+%", line) for line in lines)
    assert re.match(r"epoch 0, step 80 \(100%\); ", last)
    assert last.endswith("limit: the consumer")
    wrong: list[Any] = [0, -1, "1", None, True, float("nan"), float("inf")]
    for interval in wrong:
        with pytest.raises(ps.errors.UsageError, match="interval must be a number above 0 and at most 1,000,000"):
            loader.watch(interval)
    monkeypatch.setattr(sys, "stderr", None)
    with ps.Loader(ps.range(8).batch(4)) as loader, loader.watch():
        assert len(list(loader)) == 2


def test_a_handlers_exception_while_the_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes, also if it is an OSError, which the system raises where it has no memory for a page."""

    def time_out(*_: object) -> None:
        raise TimeoutError("the program's own")

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        monkeypatch.setattr(os, "memfd_create", interrupted)
        with pytest.raises(TimeoutError, match="the program's own"):
            LivePage()
    finally:
        signal.signal(signal.SIGUSR1, before)
