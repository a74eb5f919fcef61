"""The fork server: a process without threads that imports the modules of child processes, once, and forks these.

The problem. A child process that is spawned imports NumPy and the user's modules itself, which takes seconds. One that
is forked from the program inherits them, but also every lock that a thread of the program holds at that moment, and its
descriptors. So a clean process imports the modules and forks. `multiprocessing` has such a server, too; but it imports
only modules that are named beforehand, forks although a module has started threads, and passes on no pidfds.

Guarantees:
  - Each process is forked blank, and then gets its work. A blank process waits for the message with its work, becomes
    like the program, and does it. As long as it is blank it ends when the server closes the link; afterwards it ends
    with the program. It sends nothing to the server.
  - While spares are wanted, one process is forked ahead. It stays, so that the first process of the next loader needs
    no fork, which would take a fifth of the time to its first batch.
  - The program gets the pid and a pidfd of each process before that gets its work, and its exit code once it has ended.
    So where the server is killed meanwhile, no process works that the program doesn't know.
  - If the program closes or shuts down the status socket of a process, that is killed, or never forked.
  - If the import of a module fails or starts threads, the program gets a message, and each process imports the module
    itself. To get rid of the threads, the server executes itself again in the same process, without that module and
    those that import it; its children stay its children.
  - If the program has loaded a module again that the server has, by `importlib.reload` or as another module of that
    name, or has replaced its code as `%autoreload` does, the server executes itself again before the next owner of
    processes starts any. So it imports all modules as they are then.
  - It ends with the program, also in the middle of an import, and then kills the processes that it has forked.
"""

import array
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Final, NoReturn, TypedDict

from penstock._caught import Caught
from penstock._processes._begin import HASH_SEED, HASH_VARIABLE, watch_parent
from penstock._processes._fork_preparation import Preparation, adopt, inheriting
from penstock._processes._thread_starters import ThreadStarters, count_threads

START: Final = b"start"
MAX_DESCRIPTORS: Final = 250  # sent with one message; the system allows 253
IMPORT: Final = b"import"
RELOADED: Final = b"reloaded"
SPARE: Final = b"spare"
NO_SPARE: Final = b"no spare"
STDERR: Final = 2  # the number of the last standard stream
_REASON_CHARACTERS: Final = 500
_IMPORTED_AS: Final = {"__main__": "__mp_main__"}
_inherited: Final[list[int]] = []  # descriptors, in a process that has got its work


class Begun(TypedDict):
    """The arguments of a server: descriptors, and its knowledge from before it executed itself again."""

    control: int
    program: int
    tracker: int
    environment: dict[str, str]
    path: list[str]
    excluded: list[str]
    failures: list[tuple[str, str]]
    spares: bool
    children: list[tuple[int, int, int]]
    message: str
    pending: list[int]


@dataclass(slots=True, eq=False)
class _Child:
    pid: int
    watched: int
    """Its pidfd."""
    status: socket.socket | None = None
    """The socket through which the program learns of it; None while it is blank."""


def main(begun: Begun) -> NoReturn:
    """Serve the program until it ends."""
    _set_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was blocked until now
    tracker: Any = vars(resource_tracker)["_resource_tracker"]
    vars(tracker)["_fd"] = begun["tracker"]  # the program's, which `multiprocessing` passes on to all processes
    _fill_standard_streams()
    name_process("penstock-forks")
    _Server(begun).serve()


def _fill_standard_streams() -> None:
    """Read nothing from stdin, and open stdout and stderr if they are closed, so that no other file gets a number."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        _make_inheritable([null], inheritable=True)
    os.dup2(null, 0)
    os.close(null)


def _set_signals() -> None:
    """Ignore Ctrl-C, which is the program's, and let the system keep the exit codes of children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a program that ignores it starts processes that do, too


class _Server:
    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        self._program = begun["program"]
        self._control = socket.socket(fileno=begun["control"])
        self._children: dict[int, _Child] = {}  # by pidfd
        for pid, watched, status in begun["children"]:
            self._children[watched] = _Child(pid, watched, socket.socket(fileno=status))
        self._tried = set(begun["excluded"])
        self._failures = list(begun["failures"])  # modules and reasons, not reported yet
        self._starters = ThreadStarters()
        self._spares = begun["spares"]
        self._blank: tuple[_Child, socket.socket] | None = None
        self._has_started = False
        self._pending: list[int] = []  # descriptors of the worker that is being started
        _make_inheritable(_descriptors(begun), inheritable=False)

    def serve(self) -> NoReturn:
        """Handle the program's messages until it has ended."""
        if self._begun["pending"]:
            self._start(self._begun["message"].encode("latin-1"), self._begun["pending"])
        while True:
            lacks_spare = self._spares and self._has_started and self._blank is None
            sockets = [child.status for child in self._children.values() if child.status is not None]
            awaited: list[socket.socket | int] = [self._control, self._program, *self._children, *sockets]
            ready = connection.wait(awaited, 0 if lacks_spare else None)
            if ready:
                self._look_at(ready)
            elif lacks_spare:
                self._blank = self._fork()

    def _look_at(self, ready: Sequence[object]) -> None:
        if self._program in ready:
            self._end()
        for child in list(self._children.values()):
            if child.watched in ready:
                self._reap(child)
            elif child.status in ready:  # the program has dropped it
                self._disown(child)
        if self._control in ready:
            self._receive()

    def _receive(self) -> None:
        message, descriptors = receive_descriptors(self._control, 16)
        if not message:
            self._end()
        if message.startswith(START):
            self._start(message, descriptors)
        elif message == IMPORT:
            self._import_ahead(descriptors)
        elif message == RELOADED:
            self._forget(descriptors)
        else:
            self._spares = message == SPARE  # one that is there already stays, and is the next process

    def _end(self) -> NoReturn:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
        os._exit(0)

    # -- children

    def _start(self, message: bytes, descriptors: list[int]) -> None:
        """Run work in a blank process.

        Args:
            message: for the blank process.
            descriptors: the status socket, and those for the blank process.
        """
        self._pending = descriptors
        answer: dict[str, object] = {}
        blank: tuple[_Child, socket.socket] | None = None
        with Caught() as caught:
            with open(descriptors[1], "rb", closefd=False) as file:
                file.seek(0)  # the program has written it
                prepared: Preparation = pickle.load(file)
            self._import(prepared, message)
            if not connection.wait([descriptors[0]], 0):  # else the program has dropped it meanwhile
                blank = self._take_blank()
                answer = {"pid": blank[0].pid, "failures": self._failures}
        if caught.error is not None:
            answer = {"failed": f"{type(caught.error).__name__}: {caught.error}"}
        status = socket.socket(fileno=descriptors[0])
        is_sent = self._report(status, json.dumps(answer).encode(), [] if blank is None else [blank[0].watched])
        if blank is None:
            status.close()
        else:
            child, link = blank
            child.status = status
            with link:
                if is_sent:  # else the process ends, and the next answer has the failures
                    self._failures = []
                    with suppress(OSError):  # it has just been killed, which the program sees by the pidfd
                        socket.send_fds(link, [message], descriptors[1:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        self._pending = []
        self._has_started = True

    def _import_ahead(self, descriptors: list[int]) -> None:
        """Import modules that a process will need soon; an error is reported by its start."""
        with Caught(), open(descriptors[0], "rb") as file:
            file.seek(0)
            self._import(pickle.load(file), IMPORT)

    def _forget(self, descriptors: list[int]) -> None:
        """Forget modules that the program has loaded again; the next process that needs them has them imported."""
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            modules: set[str] = set(json.load(file))
        self._tried -= modules
        self._begun["excluded"] = [name for name in self._begun["excluded"] if name not in modules]
        if not modules.isdisjoint(sys.modules):
            self._drop_spare()
            self._execute_again([], b"")

    def _take_blank(self) -> tuple[_Child, socket.socket]:
        blank, self._blank = self._blank, None
        if blank is not None:
            if not connection.wait([blank[0].watched], 0):
                return blank
            blank[1].close()  # the spare has been killed
        return self._fork()

    def _fork(self) -> tuple[_Child, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # modules may warn of every fork
                pid = os.fork()
            if pid == 0:
                ours.close()
                self._close_all()
                serve_blank(theirs, self._program)
        child = _Child(pid, os.pidfd_open(pid))
        self._children[child.watched] = child
        return child, ours

    def _close_all(self) -> None:
        """Close the server's descriptors, in a process that was just forked."""
        self._control.close()
        for descriptor in self._pending:
            os.close(descriptor)
        if self._blank is not None:
            self._blank[1].close()
        for child in self._children.values():
            os.close(child.watched)
            if child.status is not None:
                child.status.close()
        self._children.clear()

    def _reap(self, child: _Child) -> None:
        _, how = os.waitpid(child.pid, 0)
        os.close(child.watched)
        del self._children[child.watched]
        if self._blank is not None and self._blank[0] is child:
            self._blank[1].close()
            self._blank = None
            self._has_started = False  # the next start forks the next spare, in case each spare is killed at once
        if child.status is not None:
            self._report(child.status, str(os.waitstatus_to_exitcode(how)).encode(), [])
            child.status.close()

    def _disown(self, child: _Child) -> None:
        os.kill(child.pid, signal.SIGKILL)
        if child.status is not None:
            child.status.close()
            child.status = None

    def _drop_spare(self) -> None:
        if self._blank is not None:
            child, link = self._blank
            self._blank = None
            link.close()
            os.kill(child.pid, signal.SIGKILL)
            self._reap(child)

    def _report(self, status: socket.socket, message: bytes, descriptors: list[int]) -> bool:
        """Send a message, and return whether the program still receives it."""
        with suppress(OSError):
            socket.send_fds(status, [message], descriptors)
            return True
        return False

    # -- modules

    def _import(self, prepared: Preparation, message: bytes) -> None:
        # A module that another one has imported needs no new freeze, which takes milliseconds before a first batch.
        wanted = [name for name in prepared.modules if name not in self._tried and name not in sys.modules]
        if any(prepared.main.values()) and "__main__" not in self._tried:
            wanted.insert(0, "__main__")
        adopt(prepared, with_main=False)
        if not wanted:
            return
        self._drop_spare()  # it hasn't imported them
        starting: list[str] = []
        failing: list[str] = []
        for name in wanted:
            self._tried.add(name)
            with self._ending_with_program():
                before = count_threads()
                with Caught() as caught, inheriting(), self._starters.importing(_IMPORTED_AS.get(name, name)):
                    if name == "__main__":
                        adopt(prepared, with_main=True)
                    else:
                        importlib.import_module(name)
                if count_threads() > before:
                    starting.append(name)
            if caught.error is not None:
                failing.append(name)
                self._failures.append((name, f"{type(caught.error).__name__}: {caught.error}"[:_REASON_CHARACTERS]))
            _set_signals()  # the module may have set other handlers
            del caught
        if starting:
            self._leave_out(starting, failing, wanted, message)
        _keep_operators()
        gc.collect()
        gc.freeze()  # otherwise the garbage collector of each process writes to all shared pages

    def _leave_out(self, starting: list[str], failing: list[str], wanted: list[str], message: bytes) -> NoReturn:
        """Continue without modules that start threads, others that import the same ones, and those that failed."""
        starters: dict[str, list[str]] = {}
        for name in wanted:
            imported_as = _IMPORTED_AS.get(name, name)
            starter = self._starters.starter_in(imported_as) or (imported_as if name in starting else None)
            if starter is not None:
                starters.setdefault(starter, []).append(name)
        for starter, (first, *others) in starters.items():
            how = "" if starter == _IMPORTED_AS.get(first, first) else f"imports {starter}, which "
            also = f" (so {', '.join(others)} can't be imported ahead, either)" if others else ""
            reason = f"it {how}starts threads, and a process that has some can't be forked{also}"
            self._failures.append((first, reason[:_REASON_CHARACTERS]))
        self._execute_again([*failing, *(name for names in starters.values() for name in names)], message)

    @contextmanager
    def _ending_with_program(self) -> Generator[None]:
        over, done = os.pipe()

        def watch() -> None:
            if self._program in connection.wait([self._program, over]):
                os._exit(1)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.close(done)
            thread.join()
            os.close(over)

    def _execute_again(self, without: list[str], message: bytes) -> NoReturn:
        for child in list(self._children.values()):
            if child.status is None:  # it has been killed
                self._reap(child)
        begun = self._begun.copy()
        begun["excluded"] = [*begun["excluded"], *without]
        begun["failures"] = self._failures
        begun["spares"] = self._spares
        begun["children"] = [
            (child.pid, child.watched, child.status.fileno())
            for child in self._children.values()
            if child.status is not None
        ]
        begun["message"], begun["pending"] = message.decode("latin-1"), self._pending
        _make_inheritable(_descriptors(begun), inheritable=True)
        environment = {**os.environ, HASH_VARIABLE: HASH_SEED}  # `adopt` has replaced the server's own
        os.execve(sys.executable, [*sys.orig_argv[:-1], json.dumps(begun)], environment)


def _descriptors(begun: Begun) -> list[int]:
    children = [descriptor for _, watched, status in begun["children"] for descriptor in (watched, status)]
    return [begun["control"], begun["program"], begun["tracker"], *children, *begun["pending"]]


def _make_inheritable(descriptors: list[int], *, inheritable: bool) -> None:
    for descriptor in descriptors:
        os.set_inheritable(descriptor, inheritable)


def receive_descriptors(channel: socket.socket, max_bytes: int) -> tuple[bytes, list[int]]:
    """Receive a message with its descriptors, which programs that this process starts don't inherit."""
    # Not `recv_fds`, which ignores flags before Python 3.12.
    found = array.array("i")
    room = socket.CMSG_LEN(MAX_DESCRIPTORS * found.itemsize)
    message, ancillary, _, _ = channel.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    for _, _, data in ancillary:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return message, list(found)


# -- the processes that the server forks


class ForkedDescriptor:
    """A descriptor among the arguments of a process, as `multiprocessing` sends it; `detach` returns it there."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """Return the descriptor."""
        return _inherited[self._index]


class ForkedProgram(BaseProcess):
    """The description of a process's work that `multiprocessing` understands; never started itself."""

    _start_method = None  # so that the process starts its own processes as the program does
    _bootstrap: Callable[..., int]

    def run_all(self, parent: int) -> int:
        """Run it as `multiprocessing` does, from the set-up of the process to its exit functions.

        Args:
            parent: the descriptor that is readable once the program has ended.

        Returns:
            The exit code.
        """
        return self._bootstrap(parent_sentinel=parent)


def name_process(name: str) -> None:
    """Have the system's lists show this process by a name of at most 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "wb") as shown:
        shown.write(name.encode())


def _keep_operators() -> None:
    """Have no fork take torch's operators back at its end: that takes half of the time of a short worker process."""
    registry: Iterable[weakref.finalize[..., object]] = vars(weakref.finalize)["_registry"]
    for finalizer in list(registry):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def serve_blank(link: socket.socket, program: int) -> NoReturn:
    """Wait for the work, do it, and end.

    Args:
        link: the server sends the work through it. The message is START with the number of each standard stream of
            the program. The descriptors are memory that holds a `Preparation` and a process object, the streams, and
            those that the process inherits.
        program: a pidfd of the program.
    """
    name_process("penstock-spare")
    code = 1
    with Caught() as caught:
        message, descriptors = receive_descriptors(link, 16)
        link.close()
        if descriptors:
            code = _run_program(message[len(START) :], descriptors, program)
            run: Callable[[], None] = vars(importlib.import_module("atexit"))["_run_exitfuncs"]
            run()  # as in a spawned process, which ends like any Python
            if sys.stdout is not None:
                sys.stdout.flush()
    if isinstance(caught.error, SystemExit) and isinstance(caught.error.code, int | None):
        code = caught.error.code or 0  # the main module's
    elif caught.error is not None:
        sys.excepthook(type(caught.error), caught.error, caught.error.__traceback__)
        if sys.stderr is not None:
            sys.stderr.flush()
    os._exit(code)


def _run_program(streams: bytes, descriptors: list[int], program: int) -> int:
    name_process("penstock-worker")
    watch_parent(program)
    memory, *others = descriptors
    for number, descriptor in zip(streams, others, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _inherited[:] = others[len(streams) :]
    with open(memory, "rb") as file, inheriting():
        file.seek(0)  # the server has read some of it
        prepared: Preparation = pickle.load(file)
        adopt(prepared, with_main=True)
        process: ForkedProgram = pickle.load(file)
    return process.run_all(program)
