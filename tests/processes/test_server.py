"""The fork server: its imports, and the behaviour when one fails or the server is killed."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from penstock._processes._fork_client import servers
from penstock._processes._fork_server import START
from penstock._processes._reloads import LoadedModules
from tests.leaks import spares_of
from tests.processes import functions
from tests.processes.helping import SECONDS, open_spare, received, started, supervised, watched

MakeFunction = Callable[[str, str], Callable[..., None]]

NO_DESCRIPTOR = 1 << 30
MODULE = """
import os, pathlib
from tests.processes.beginning import begin

with pathlib.Path(__file__).with_suffix(".count").open("a+") as counting:
    counting.write("x")
    attempt = counting.tell()  # 1 in the program, 2 in the server, more in its processes
imported_by = os.getpid()

def run(pipe, *_):
    begin()
    pipe.send((os.getpid(), imported_by))
    pipe.poll(None)

"""


@pytest.fixture
def make_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[MakeFunction]:
    """Write a module, and return its function for processes, which sends its pid and that of the importing process."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names: list[str] = []

    def make(name: str, text: str) -> Callable[..., None]:
        (tmp_path / f"{name}.py").write_text(MODULE + dedent(text))
        importlib.invalidate_caches()
        names.append(name)
        function: Callable[..., None] = importlib.import_module(name).run
        return function

    yield make
    for name in names:
        del sys.modules[name]


def server_of(pid: int) -> int:
    """Return the number of the process that forked one."""
    server: int = psutil.Process(pid).ppid()
    assert server != os.getpid()
    return server


def test_modules_are_imported_once(make_function: MakeFunction) -> None:
    """The server imports the modules that processes need, and stays the same process.

    A later process may need other modules; they are imported before it is forked, also those of pickled bytes.
    """
    with started(functions.report) as first, started(functions.report) as second:
        importers = {received(child)["imported_by"] for child in (first, second)}
        assert importers == {server_of(first.pid)} == {server_of(second.pid)}
        with started(make_function("penstock_test_later", "")) as third:
            pid, imported_by = received(third)
            assert imported_by == server_of(first.pid) == server_of(pid)


def test_an_import_that_starts_threads(make_function: MakeFunction, caplog: pytest.LogCaptureFixture) -> None:
    """A module that starts threads isn't there when processes are forked; those that were forked before are known."""
    text = "import threading\nif attempt > 1: threading.Thread(target=threading.Event().wait, daemon=True).start()"
    function = make_function("penstock_test_threads", text)
    with started(functions.report) as before:
        received(before)
        with started(function) as child, started(function) as another:
            for each in (child, another):
                pid, imported_by = received(each)
                assert pid == imported_by
                assert server_of(pid) == server_of(before.pid)
            os.kill(child.pid, signal.SIGTERM)
            assert child.death().exit_code == -signal.SIGTERM
        os.kill(before.pid, signal.SIGTERM)
        assert before.death().exit_code == -signal.SIGTERM
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "penstock"]
    assert "penstock_test_threads" in warning
    assert "threads" in warning


def test_modules_that_import_one_that_starts_threads(
    make_function: MakeFunction, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server finds all of them at one go, also those that import it indirectly, and imports the others ahead."""
    starts = "import threading\nif attempt > 1: threading.Thread(target=threading.Event().wait, daemon=True).start()"
    make_function("penstock_test_library", starts)
    first = make_function("penstock_test_first", "import penstock_test_library\nlater_too = None")
    second = make_function("penstock_test_second", "from penstock_test_first import later_too")
    third = make_function("penstock_test_third", "")
    failing = make_function("penstock_test_failing", "if attempt == 2: raise RuntimeError('not in the server')")
    with started(failing, first, second, third) as child:
        pid, imported_by = received(child)
        assert pid == imported_by  # the server doesn't try again, and reports the failure once
        counts = {each.stem: len(each.read_text()) for each in tmp_path.glob("*.count")}
    # In the program, in the server, and in the process; what the server can import, it imports again.
    names = ("failing", "library", "first", "second", "third")
    assert counts == dict.fromkeys((f"penstock_test_{name}" for name in names), 3)
    failure, warning = [record.getMessage() for record in caplog.records if record.name == "penstock"]
    assert "RuntimeError: not in the server" in failure
    assert "penstock_test_first" in warning
    assert "imports penstock_test_library, which starts threads" in warning
    assert "so penstock_test_second can't be imported ahead, either" in warning


def test_modules_that_the_program_loads_again(make_function: MakeFunction, tmp_path: Path) -> None:
    """A process of a later owner has the modules that the program has by then; an earlier process lives on."""
    text = "import penstock_test_setting as it\ndef run(pipe, *_):\n    pipe.send({}it.value)\n    pipe.poll(None)"
    setting, user = (tmp_path / f"penstock_test_{name}.py" for name in ("setting", "user"))
    make_function(setting.stem, "value = 1")
    function = make_function(user.stem, text.format(""))
    with supervised(function) as before:
        first = before.start("process", ())
        assert received(first) == 1
        setting.write_text("value = 100")
        importlib.reload(sys.modules[setting.stem])
        with supervised(function) as after:
            assert received(after.start("process", ())) == 100
        del sys.modules[user.stem]
        user.write_text(text.format("-"))
        with supervised(importlib.import_module(user.stem).run) as after:
            second = after.start("process", ())
            assert received(second) == -100
            assert server_of(first.pid) == server_of(second.pid)
        os.kill(first.pid, signal.SIGTERM)
        assert first.death().exit_code == -signal.SIGTERM


def test_values_of_modules_are_not_kept(make_function: MakeFunction) -> None:
    """A module may drop a large constant, which the program doesn't keep in order to see changes."""
    make_function("penstock_test_large", "class Names(dict): pass\nnames = Names()\ntext = [names]\ndef run(): pass")
    module = vars(sys.modules["penstock_test_large"])
    loaded = LoadedModules()
    names = weakref.ref(module["names"])
    del module["names"], module["text"]
    gc.collect()
    assert names() is None
    assert "penstock_test_large" not in loaded.take_changed()


def test_modules_whose_code_the_program_replaces(make_function: MakeFunction, tmp_path: Path) -> None:
    """Processes have what a notebook's reloader puts into the module, and don't follow an edit that the program lacks.

    The module's file is read again only once its functions or constants have changed as the file says.
    """
    file = tmp_path / "penstock_test_edited.py"
    text = "calls = 0\nclass Made:\n    scale = {}\ndef run(pipe, *_): pipe.send({}Made.scale), pipe.poll(None)"
    function = make_function(file.stem, text.format("2 / 1", ""))
    module = vars(sys.modules[file.stem])

    def sent() -> object:
        with supervised(function) as supervisor:
            return received(supervisor.start("process", ()))

    assert sent() == 2
    file.write_text(MODULE + text.format("3 / 1", "-"))
    module["calls"] = 1
    assert sent() == 2
    replaced: dict[str, Any] = {}
    exec(text.format("3 / 1", "-"), replaced)  # so does `%autoreload`
    function.__code__ = replaced["run"].__code__
    assert sent() == -3
    file.write_text(MODULE + text.format("4000 / 1", "-"))
    module["calls"] = 2
    assert sent() == -3
    module["Made"].scale = 4000.0
    assert sent() == -4000


def test_killed_while_the_server_imports(make_function: MakeFunction, tmp_path: Path) -> None:
    """A process that was given up while the server imported for it is never forked; others are, once that is over."""
    os.mkfifo(tmp_path / "gate")
    function = make_function(
        "penstock_test_blocking", "if attempt == 2: (pathlib.Path(__file__).parent / 'gate').open().readline()"
    )
    with started(function) as given_up, started(functions.report) as other:
        assert not other.wait(0.1)
        given_up.kill()
        assert given_up.wait(SECONDS)
        assert given_up.death(started=False).exit_code == -signal.SIGKILL
        with (tmp_path / "gate").open("w") as gate:
            gate.write("go on\n")
        assert received(other)["pid"] == other.pid
        assert given_up.pid == 0


def test_the_server_is_killed_while_it_imports(make_function: MakeFunction, tmp_path: Path) -> None:
    """A process whose server is killed before the fork counts as dead, and the next one has a new server."""
    os.mkfifo(tmp_path / "gate")
    function = make_function(
        "penstock_test_killed", "if attempt == 2: (pathlib.Path(__file__).parent / 'gate').open().readline()"
    )
    with started(functions.report) as before:
        received(before)
        server = server_of(before.pid)
        with started(function) as child:
            with (tmp_path / "gate").open("w"):  # it is at it
                os.kill(server, signal.SIGKILL)
                assert child.wait(SECONDS)
            assert child.death(started=False).exit_code == -signal.SIGKILL
        with started(function) as child:
            pid, imported_by = received(child)
            assert imported_by == server_of(pid) != server


def test_the_server_is_killed_while_it_reports_a_process(make_function: MakeFunction) -> None:
    """A process that the program doesn't know gets no work: it sends nothing, and counts as dead."""
    text = """
    if attempt == 2:
        from penstock._processes import _fork_server
        _fork_server._Server._report = lambda *_: os.kill(os.getpid(), 9)
    """
    function = make_function("penstock_test_unreported", text)
    with started(function) as child:
        assert child.wait(SECONDS)
        assert child.pid == 0
        with pytest.raises(EOFError):
            child.pipe.recv()
        assert child.death(started=False).exit_code == -signal.SIGKILL
    with started(function) as child:
        assert received(child)[0] == child.pid


def test_a_message_that_the_system_refuses_leaves_the_server_alone() -> None:
    """The system may refuse descriptors, such as those beyond a limit on how many are on their way."""
    with started(functions.report) as child:
        server = server_of(child.pid)
        with pytest.raises(OSError, match="Bad file descriptor"):
            servers.send(None, START, [NO_DESCRIPTOR])
        with started(functions.report) as other:
            assert server_of(other.pid) == server
        assert received(child)["pid"] == child.pid


def test_the_server_is_killed() -> None:
    """Processes outlive a server that is killed, and can be talked with and killed; others have a new server."""
    with started(functions.report) as orphan:
        server = server_of(received(orphan)["pid"])
        with watched(server) as wait:
            os.kill(server, signal.SIGKILL)
            assert wait(SECONDS)
        assert not orphan.wait_for_end(0)
        with started(functions.report) as child:
            assert server_of(received(child)["pid"]) != server
        orphan.kill()
        assert orphan.wait_for_end(SECONDS)
        assert "exit code unknown" in str(orphan.death())


# Servers and processes import this module. It imports little, since their imports take most of the test's time.
HASHING = """
import os, subprocess
from tests.processes.beginning import begin

def report(pipe, *_):
    begin()
    shown = subprocess.run(["printenv", "PYTHONHASHSEED"], capture_output=True, text=True, check=False)
    pipe.send((hash("a text"), shown.stdout.rstrip(), os.getppid()))
    pipe.poll(None)
"""
HASHES = """
import importlib, os, select, signal
import hashing
from penstock._processes import RestartPolicy, Starting, Supervisor
from tests.processes.beginning import SEEDS, ChildProcess

def shown(child):
    assert child.wait(60) and child.pipe.poll()
    *found, server = child.pipe.recv()
    print(*found)
    return server

def show(start_method=None):
    child = ChildProcess(hashing.report, (), name="process", start_method=start_method)
    shown(child)
    child.close()

def show_later():
    importlib.reload(hashing)
    supervisor = Supervisor(hashing.report, SEEDS.child, policy=RestartPolicy(), starting=Starting())
    server = shown(supervisor.start("process", ()))
    supervisor.close()
    end = os.pidfd_open(server)
    os.kill(server, signal.SIGKILL)
    assert select.select([end], [], [], 60)[0]
    show()
    show("spawn")

if __name__ == "__main__":
    print(hash("a text"))
    show()
    if not os.environ["PYTHONHASHSEED"]:
        show_later()
"""


def test_texts_have_one_hash_in_all_processes(tmp_path: Path) -> None:
    """Processes of every server and spawned ones hash as with the seed 0, or as a program whose user set the seed.

    Programs that they start see the variable as the user has set it.
    """

    def lines_of(seed: str, *command: str) -> list[str]:
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, check=True, timeout=SECONDS
        )
        return run.stdout.splitlines()

    script = tmp_path / "script.py"
    script.write_text(HASHES)
    (tmp_path / "hashing.py").write_text(HASHING)
    own, *found = lines_of("", str(script))
    assert found == [*lines_of("0", "-c", "print(hash('a text'), '')")] * 4
    assert not found[0].startswith(own)
    own, *found = lines_of("7", str(script))
    assert found == [f"{own} 7"]


def test_a_spare_takes_the_place_of_one_that_died() -> None:
    """Where a spare is wanted, the next process is one that was forked before it was asked for; then another one is."""
    spare = open_spare(None, None)
    assert spare is not None
    with started(functions.report) as child:
        server = psutil.Process(server_of(received(child)["pid"]))
        for _ in range(3):
            forked_ahead = wait_for_spare(server)
            with started(functions.report) as replacement:
                assert received(replacement)["pid"] == forked_ahead
        killed = wait_for_spare(server)
        with watched(killed) as wait:
            os.kill(killed, signal.SIGKILL)
            assert wait(SECONDS)
        with started(functions.report) as replacement:
            received(replacement)
            wait_for_spare(server)
        spare.close()


def test_a_spare_waits_for_the_next_loader() -> None:
    """A spare that is there when no spare is wanted any more stays, and is the next process; then none is forked."""
    spare = open_spare(None, None)
    assert spare is not None
    with started(functions.report) as child:
        server = psutil.Process(server_of(received(child)["pid"]))
        forked_ahead = wait_for_spare(server)
        spare.close()
        with started(functions.report) as one:
            assert received(one)["pid"] == forked_ahead
        with started(functions.report) as another:  # the server has handled all earlier messages when this one reports
            received(another)
            assert not spares_of(server.pid)


def wait_for_spare(server: psutil.Process) -> int:
    """Return the number of the process that a server has forked ahead, once it has; nothing tells when."""
    never_set = threading.Event()
    for _ in range(round(SECONDS / 0.02)):
        for child in server.children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == "penstock-spare" and child.status() != psutil.STATUS_ZOMBIE:
                    number: int = child.pid
                    return number
        never_set.wait(0.02)
    raise AssertionError("there is no spare")
