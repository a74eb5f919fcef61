"""Worker processes on a shared ring, looked after by one thread that also kills them at random.

The thread is the ring's keeper: it learns of a death by the worker's pidfd, releases the worker and starts another. It
does so beside the owner, the test, which meanwhile arms, waits, cancels and retires.
"""

import json
import os
import random  # noqa: TID251 - a test's own seed
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.promptness import PATIENCE_SECONDS as PATIENCE_SECONDS
from tests.transport.ring_worker import ROWS_BYTES, SlotRing, rows_over

REPOSITORY: Final = Path(__file__).parents[2]
SIZE: Final = 3  # workers at a time
SUICIDES: Final = 0.002  # how often a worker kills itself, of the points at which it may


@dataclass
class Worker:
    """A worker as its keeper knows it."""

    number: int
    pidfd: int
    connection: socket.socket
    killed: bool = False


@dataclass
class Counts:
    """The counts of workers' outcomes."""

    started: int = 0
    ended: int = 0
    kills: int = 0
    suicides: int = 0
    held: int = 0  # blocks that dead workers held
    wrong: list[str] = field(default_factory=list[str])  # what must not have happened


class Crew:
    """Starts workers, replaces those that die, and stops them at the end.

    Args:
        ring: the shared ring.
        folder: the folder of the socket.
        kills: how many are killed from outside, in all; some kill themselves too.
        seed: of the times and the victims of the kills.
    """

    def __init__(self, ring: SlotRing, *, folder: Path, kills: int, seed: int) -> None:
        self.counts = Counts()
        self.died = threading.Event()  # set at each death
        self.kills_left = kills
        self._ring, self._path = ring, str(folder / "owner")
        self._chance = random.Random(seed)
        self._workers: list[Worker] = []
        self._numbers = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._memory = os.memfd_create("rows")
            stack.callback(os.close, self._memory)
            os.ftruncate(self._memory, ROWS_BYTES)
            self.rows = rows_over(self._memory)
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(self._path)
            self._listener.listen()
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._nursery = stack.enter_context(self._open_nursery())
            self._thread = threading.Thread(target=self._keep)
            self._thread.start()
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ring.stop()
        self._thread.join()
        self._resources.close()
        assert self.counts.wrong == []

    def join(self) -> None:
        """Wait until the workers have ended, because somebody stopped the ring."""
        self._thread.join()

    def _open_nursery(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "tests.transport.ring_worker", self._path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, cwd=REPOSITORY, env=environment, bufsize=0)

    def _keep(self) -> None:
        try:
            for _ in range(SIZE):
                self._start()
            while not (self._ring.stopped and self.counts.started == self.counts.ended):
                self._collect_outcomes()
        except BaseException as error:  # noqa: BLE001 - the test says it
            self.counts.wrong.append(f"the keeper failed: {error!r}; {self.counts}")
            self._nursery.kill()
            self._listener.close()  # workers that connect to it end
            for worker in self._workers:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
                os.close(worker.pidfd)
                worker.connection.close()
            self._ring.stop()

    def _collect_outcomes(self) -> None:
        # Random is the time without a birth or a death before a kill.
        killing = self.kills_left > 0 and len(self._workers) > 0
        events = self._selector.select(self._chance.random() * 0.02 if killing else PATIENCE_SECONDS)
        for key, _ in events:
            if isinstance(key.data, Worker):
                self._bury(key.data)
            elif key.fileobj is self._listener:
                self._welcome()
        if not events:
            if not killing:
                raise TimeoutError("no worker is born or dies")
            self._kill(self._chance.choice(self._workers))

    def _start(self) -> None:
        stdin = self._nursery.stdin
        assert stdin is not None
        stdin.write(b"\n")
        self.counts.started += 1

    def _welcome(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        _, (pidfd, *_), _, _ = socket.recv_fds(connection, 10, 1)
        # Numbers are never used again: one worker's claims must not be taken for another's.
        self._numbers += 1
        worker = Worker(self._numbers, pidfd, connection)
        self._workers.append(worker)
        self._selector.register(pidfd, selectors.EVENT_READ, worker)
        greeting = json.dumps([worker.number, self._chance.getrandbits(32), SUICIDES]).encode()
        socket.send_fds(connection, [greeting], [*self._ring.descriptors(), self._memory])

    def _kill(self, worker: Worker) -> None:
        if worker.killed:
            return
        with suppress(ProcessLookupError):  # it killed itself meanwhile
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            worker.killed = True
            self.counts.kills += 1
            self.kills_left -= 1

    def _bury(self, worker: Worker) -> None:
        self._selector.unregister(worker.pidfd)
        self._workers.remove(worker)
        os.close(worker.pidfd)
        said = ""
        with worker.connection, suppress(ConnectionError):  # reset by a worker that was killed before it had read
            said = worker.connection.recv(10_000).decode()
        self.counts.ended += 1
        self.counts.held += self._ring.release_worker(worker.number)
        self.counts.suicides += said == "suicide"
        if said not in {"end", "suicide"} and not (worker.killed and not said):
            self.counts.wrong.append(f"worker {worker.number} ended, saying {said!r}")
        if not self._ring.stopped:
            self._start()
        self.died.set()
