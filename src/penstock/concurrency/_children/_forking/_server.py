"""The process that forks workers: it imports what they need, once, and has no threads when it forks.

Guarantees:
  - Each worker is forked blank, and told what to run; as long as spares are wanted, one is forked ahead.
  - The pid and a pidfd of each are sent to the program, and its exit code once it has ended.
  - A worker whose status socket the program closes or shuts down is killed, or never forked.
  - A module whose import fails, or starts threads, is told of, and imported by each worker itself. To be rid of the
    threads, the server begins anew in the same process, without that module, and knows its workers still.
  - It ends with the program, also in the middle of an import, and then kills what it has forked.
"""

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
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, Final, NoReturn, TypedDict

from penstock._caught import Caught
from penstock.concurrency._children._forking._preparation import Preparation, adopt, inheriting
from penstock.concurrency._children._forking._worker import MOST_DESCRIPTORS, START, serve_blank

SPARE: Final = b"spare"
NO_SPARE: Final = b"no spare"
_REASON_CHARACTERS: Final = 500


class Begun(TypedDict):
    """What a server begins with: descriptors, and what it had before it began anew."""

    control: int
    program: int
    tracker: int
    environment: dict[str, str]
    path: list[str]
    excluded: list[str]
    untold: list[tuple[str, str]]
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
    """Where the program is told of it; None while it is blank."""


def main(begun: Begun) -> NoReturn:
    """Serve the program until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was held back until now
    tracker: Any = vars(resource_tracker)["_resource_tracker"]
    tracker._fd = begun["tracker"]  # noqa: SLF001 - the program's, as `multiprocessing` hands it on
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _Server(begun).serve()


class _Server:
    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        self._program = begun["program"]
        self._control = socket.socket(fileno=begun["control"])
        for descriptor in (self._program, begun["control"], begun["tracker"]):
            os.set_inheritable(descriptor, False)
        self._children: dict[int, _Child] = {}  # by pidfd
        for pid, watched, status in begun["children"]:
            os.set_inheritable(watched, False)
            os.set_inheritable(status, False)
            self._children[watched] = _Child(pid, watched, socket.socket(fileno=status))
        self._tried = set(begun["excluded"])
        self._untold = list(begun["untold"])
        self._spares = begun["spares"]
        self._blank: tuple[_Child, socket.socket] | None = None
        self._has_started = False

    def serve(self) -> NoReturn:
        """Do what the program says until it has ended."""
        if self._begun["pending"]:
            for descriptor in self._begun["pending"]:
                os.set_inheritable(descriptor, False)
            self._start(self._begun["message"].encode("latin-1"), self._begun["pending"])
        while True:
            lacks_spare = self._spares and self._has_started and self._blank is None
            told: list[object] = [child.status for child in self._children.values() if child.status is not None]
            awaited = [self._control, self._program, *self._children, *told]
            ready: list[Any] = connection.wait(awaited, 0 if lacks_spare else None)
            if self._program in ready:
                self._end()
            for child in list(self._children.values()):
                if child.watched in ready:
                    self._bury(child)
                elif child.status in ready:  # the program wants to know nothing of it any more
                    self._disown(child)
            if self._control in ready:
                self._hear()
            if lacks_spare and not ready:
                self._blank = self._fork()

    def _hear(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, 16, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            self._end()
        if message.startswith(START):
            self._start(message, descriptors)
        else:
            self._spares = message == SPARE
            if not self._spares:
                self._drop_spare()

    def _end(self) -> NoReturn:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
        os._exit(0)

    # -- children

    def _start(self, message: bytes, descriptors: list[int]) -> None:
        """Have a worker run something.

        Args:
            message: for a blank process.
            descriptors: the status socket, and those for a blank process.
        """
        status = socket.socket(fileno=descriptors[0])
        given = descriptors[1:]
        with open(given[0], "rb", closefd=False) as file:
            file.seek(0)  # the program has written it
            prepared: Preparation = pickle.load(file)
        self._import(prepared, message, descriptors)
        if connection.wait([status], 0):  # given up meanwhile
            status.close()
        else:
            with Caught() as caught:
                child = self._hand_over(message, given)
            if caught.error is not None:
                self._tell(status, json.dumps({"failed": repr(caught.error)}).encode(), [])
                status.close()
            else:
                child.status = status
                told = {"pid": child.pid, "failures": self._untold}
                self._untold = []
                self._tell(status, json.dumps(told).encode(), [child.watched])
        for descriptor in given:
            os.close(descriptor)
        self._has_started = True

    def _hand_over(self, message: bytes, given: list[int]) -> _Child:
        while True:
            is_new = self._blank is None
            child, link = self._blank or self._fork()
            self._blank = None
            with link:
                try:
                    socket.send_fds(link, [message], given)
                except OSError:  # the spare has been killed
                    if is_new:
                        raise
                    continue
            return child

    def _fork(self) -> tuple[_Child, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a module may be of the opinion that forking is always wrong
                pid = os.fork()
            if pid == 0:
                ours.close()
                self._close_all()
                serve_blank(theirs, self._program)
        child = _Child(pid, os.pidfd_open(pid))
        self._children[child.watched] = child
        return child, ours

    def _close_all(self) -> None:
        """Close, in a process that was just forked, what is the server's alone."""
        self._control.close()
        if self._blank is not None:
            self._blank[1].close()
        for child in self._children.values():
            os.close(child.watched)
            if child.status is not None:
                child.status.close()
        self._children.clear()

    def _bury(self, child: _Child) -> None:
        _, how = os.waitpid(child.pid, 0)
        os.close(child.watched)
        del self._children[child.watched]
        if self._blank is not None and self._blank[0] is child:
            self._blank[1].close()
            self._blank = None
            self._has_started = False  # another one is forked with the next worker, should it be killed again and again
        if child.status is not None:
            self._tell(child.status, str(os.waitstatus_to_exitcode(how)).encode(), [])
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
            self._bury(child)

    def _tell(self, status: socket.socket, message: bytes, descriptors: list[int]) -> None:
        with suppress(OSError):  # the program wants to know nothing of it any more
            socket.send_fds(status, [message], descriptors)

    # -- imports

    def _import(self, prepared: Preparation, message: bytes, pending: list[int]) -> None:
        main = str(next(iter(prepared.main.values()), ""))
        wanted = [name for name in (main and "__main__", *prepared.modules) if name and name not in self._tried]
        adopt(prepared, with_main=False)
        if not wanted:
            return
        self._drop_spare()  # it lacks them
        for name in wanted:
            self._tried.add(name)
            with self._ending_with_program():
                before = _count_threads()
                with Caught() as caught, inheriting():
                    if name == "__main__":
                        adopt(prepared, with_main=True)
                    else:
                        importlib.import_module(name)
                has_threads = _count_threads() > before
            if caught.error is not None:
                self._untold.append((name, f"{type(caught.error).__name__}: {caught.error}"[:_REASON_CHARACTERS]))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may have set another handler
            del caught
            if has_threads:
                self._untold.append((name, "it starts threads, and a process that has some can't be forked"))
                self._begin_anew(name, message, pending)
        gc.collect()
        gc.freeze()  # else the collector of each worker writes to all pages that it shares

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

    def _begin_anew(self, without: str, message: bytes, pending: list[int]) -> NoReturn:
        for child in list(self._children.values()):
            if child.status is None:  # it has been killed
                self._bury(child)
        begun = self._begun.copy()
        begun["excluded"] = [*begun["excluded"], without]
        begun["untold"] = self._untold
        begun["spares"] = self._spares
        begun["children"] = [
            (child.pid, child.watched, child.status.fileno())
            for child in self._children.values()
            if child.status is not None
        ]
        begun["message"], begun["pending"] = message.decode("latin-1"), pending
        for descriptor in (
            *(begun["control"], begun["program"], begun["tracker"], *pending),
            *(descriptor for _, *both in begun["children"] for descriptor in both),
        ):
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [*sys.orig_argv[:-1], json.dumps(begun)])


def _count_threads() -> int:
    return len(os.listdir("/proc/self/task"))
