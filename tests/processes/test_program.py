"""Processes of a program that is a script, forks, is interrupted, or is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes.helping import SECONDS, ends_promptly, program, watched

pytestmark = pytest.mark.usefixtures("forked_programs")

BEGINNING = """
import os, sys, threading
from tests.processes.beginning import ChildProcess, begin, open_spare

def answer(pipe, *_):
    begin()
    pipe.send((os.getpid(), __name__))
    pipe.poll(None)

def start():
    child = ChildProcess(answer, (), name="process", start_method=None)
    child.wait()
    return child, *child.pipe.recv()

"""


MAIN = """
if __name__ == "__main__":
    import multiprocessing
    from multiprocessing import forkserver
    from pathlib import Path
    child, _, name = start()
    print(name, multiprocessing.get_start_method(allow_none=True), vars(forkserver)["_forkserver"]._forkserver_pid)
    child.end(60)
    sys.path += [Path('lib'), b'lib']
    globals().pop('__spec__', None)
    for method in ("forkserver", "spawn"):
        child = ChildProcess(answer, (), name="process", start_method=method)
        child.wait()
        print(child.pipe.recv()[1])
        child.end(60)
"""


def test_functions_of_the_main_module(tmp_path: Path) -> None:
    """Functions of a script run; nothing is printed, and what belongs to `multiprocessing` is as it was.

    Entries of the path that `import` ignores, and the lack of a specification, as under `pdb`, change nothing.
    """
    with program(BEGINNING + MAIN, tmp_path) as running:
        assert running.communicate(timeout=SECONDS) == ("__mp_main__ None None\n__mp_main__\n__mp_main__\n", "")
        assert running.returncode == 0


UNREACHABLE = """
if __name__ == "__main__":
    os.chdir(os.path.dirname(__file__))
    for _ in range(20):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
    for method in ("forkserver", "spawn"):
        child = ChildProcess(answer, (), name="process", start_method=method)
        child.wait()
        print(child.pipe.recv()[1])
        child.end(60)
"""


def test_the_folder_of_the_program_cannot_be_entered_again(tmp_path: Path) -> None:
    """Processes begin in the program's folder also if its path is too long, or closed to the program's user."""
    with program(BEGINNING + UNREACHABLE, tmp_path) as running:
        assert running.communicate(timeout=SECONDS) == ("__mp_main__\n__mp_main__\n", "")


ENDING = """
if __name__ == "__main__":
    spare = open_spare(None, None)
    child, pid, _ = start()
    print(pid, flush=True)
    if sys.argv[1] == "waits":
        while not threading.Event().wait(0.5):  # Python sleeps through a signal that comes just before it begins to
            pass
"""


@pytest.mark.parametrize(("end", "doing"), [(signal.SIGKILL, "waits"), (signal.SIGINT, "waits"), (None, "ends")])
def test_nothing_outlives_the_program(end: signal.Signals | None, doing: str, tmp_path: Path) -> None:
    """However the program ends, its process, its spare and its server end within a second, and print nothing."""
    with program(BEGINNING + ENDING, tmp_path, doing) as running:
        pid = int(running.stdout.readline())
        left: set[int] = {pid}
        if end is not None:
            left |= {each.pid for each in psutil.Process(running.pid).children(recursive=True)}
            os.killpg(running.pid, end) if end is signal.SIGINT else running.kill()
        _, errors = running.communicate(timeout=SECONDS)
        for each in left:
            if psutil.pid_exists(each):
                with watched(each) as has_ended:
                    assert ends_promptly(has_ended)
        assert errors.count("Traceback") == (end is signal.SIGINT), errors
        if end is signal.SIGINT:
            assert errors.rstrip().endswith("KeyboardInterrupt")


BLOCKING = """
if __name__ == "__main__":
    child = ChildProcess(answer, (), name="process", start_method=None)
    child.wait()
else:
    print(os.getpid(), flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_the_program_ends_while_its_server_imports(end: signal.Signals, tmp_path: Path) -> None:
    """A server ends within a second of its program, in the middle of an import too, and prints nothing."""
    with program(BEGINNING + BLOCKING, tmp_path) as running:
        with watched(int(running.stdout.readline())) as has_ended:
            os.killpg(running.pid, end) if end is signal.SIGINT else running.kill()
            _, errors = running.communicate(timeout=SECONDS)
            assert ends_promptly(has_ended)
        assert errors.count("Traceback") == (end is signal.SIGINT), errors


FORKING = """
if __name__ == "__main__":
    child, pid, _ = start()
    forked = os.fork()
    if forked == 0:
        other, other_pid, _ = start()
        other.end(60)
        child.kill()
        child.close()
        sys.exit(3 if other_pid != pid else 4)
    status = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    print(status, child.wait_for_end(0))
    another, _, _ = start()
    for each in (child, another):
        each.pipe.send_bytes(b"")
        print(each.wait_for_end(60), each.death().exit_code)
"""


def test_a_fork_of_the_program(tmp_path: Path) -> None:
    """A fork has processes of its own, and neither it nor its end does anything to those of the program."""
    with program(BEGINNING + FORKING, tmp_path) as running:
        assert running.communicate(timeout=SECONDS) == ("3 False\nTrue 0\nTrue 0\n", "")


IGNORING = """
if __name__ == "__main__":
    import signal, psutil
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    servers = []
    for _ in range(2):
        child, pid, _ = start()
        servers.append(psutil.Process(pid).ppid())
        os.kill(pid, signal.SIGTERM)
        print(child.death().exit_code)
        child.close()
    print(servers[0] == servers[1])
    os.kill(servers[0], signal.SIGSTOP)
    child = ChildProcess(answer, (), name="process", start_method=None)
    os.kill(servers[0], signal.SIGKILL)
    print(child.death(started=False).exit_code)
    child.close()
"""


def test_a_program_that_ignores_the_end_of_children(tmp_path: Path) -> None:
    """The server sends exit codes although SIGCHLD is ignored, and lives on; its own exit code is unknown then."""
    with program(BEGINNING + IGNORING, tmp_path) as running:
        assert running.communicate(timeout=SECONDS) == ("-15\n-15\nTrue\nNone\n", "")


CLOSED = """
if __name__ == "__main__":
    for number in sys.argv[2]:
        os.close(int(number))
    first = start()[0]
    second, pid, _ = start()
    with open(sys.argv[1], "w") as file:
        print(*(os.readlink(f"/proc/{pid}/fd/{number}") for number in sys.argv[2]), file=file)
    for child in (first, second):
        child.pipe.send_bytes(b"")
        assert child.wait_for_end(60) and child.death().exit_code == 0
"""


@pytest.mark.parametrize("closed", [pytest.param("1", marks=pytest.mark.long), "012"])  # the other has this one, too
def test_a_program_without_standard_streams(closed: str, tmp_path: Path) -> None:
    """Where streams of the program are closed, and other files have their numbers, processes have none either."""
    with program(BEGINNING + CLOSED, tmp_path, str(tmp_path / "found"), closed) as running:
        assert running.communicate(timeout=SECONDS) == ("", "")
        assert running.returncode == 0
    assert (tmp_path / "found").read_text().split() == ["/dev/null"] * len(closed)


WITHOUT_FILES = """
import errno, resource
from penstock._processes._main_module import check_guard, is_imported

if __name__ == "__main__":
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        check_guard()
    except OSError as error:
        print(error.errno == errno.EMFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    check_guard()
    print(is_imported())
"""


def test_a_program_that_may_open_no_file_keeps_its_guard(tmp_path: Path) -> None:
    """A script that can't be read for a moment doesn't count as one without a guard."""
    with program(WITHOUT_FILES, tmp_path) as running:
        assert running.communicate(timeout=SECONDS) == ("True\nTrue\n", "")


STRICT = """
if __name__ == "__main__":
    child = ChildProcess(answer, (), name="process", start_method=None)
    print(os.readlink(f"/proc/self/fd/{child.fileno()}"))
    child.close()
"""


@pytest.mark.parametrize("arguments", [["-O"], ["-W", "error", "-bb"]], ids=["without assertions", "warnings"])
def test_a_program_with_options_of_python(arguments: list[str], tmp_path: Path) -> None:
    """Warnings of files without an encoding end no process where they are errors; nothing depends on assertions."""
    script = tmp_path / "strict.py"
    script.write_text(BEGINNING + STRICT)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNDEFAULTENCODING": "1"}
    command = [sys.executable, *arguments, str(script)]
    run = subprocess.run(command, env=environment, timeout=SECONDS, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "anon_inode:[pidfd]\n", "")
