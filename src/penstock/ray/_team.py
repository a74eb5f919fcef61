"""The processes of a pool, as the program that started them sees them: which of them are ready, and how busy.

Ray decides where a process runs, and when: perhaps never, if the cluster has too few processors. So spans are given
only to processes that have answered once. A process that was lost is replaced by another, which may have to wait in the
same way. If processes don't start, such as on a host that lacks memory, the others compute, and the pool tries again
later; if there are no others, that is an error.

Processes with a name belong to the cluster. Any program may start them and find them, and none ends them, since it
can't know whether others use them. So each ends itself when it had no work for ten minutes. A program that still uses
it starts it again, which takes less than a second.
"""

import importlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock._os import Bell
from penstock.errors import WorkerError
from penstock.ray._worker import Worker

if TYPE_CHECKING:
    from concurrent.futures import Future

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_logger = logging.getLogger("penstock")
_SPANS: Final = 2  # of a process: one that it computes, and one that it has already received
_STARTS: Final = 3  # of each process that fails to start
_PAUSE_SECONDS: Final = 10.0  # after that many, while other processes are ready
_NAMESPACE: Final = "penstock"  # of the names of processes: a program has another one for its own actors
_IDLE_SECONDS: Final = 600.0  # without work; then a process with a name ends


class Member:
    """A process of a pool.

    Attributes:
        number: its number in the pool.
        host: its host; empty before it has started.
        node: identifies the host in the cluster.
        pid: its process's ID; 0 before it has started.
        answered: when it has ended a span, by the monotonic clock; 0 for not yet.
    """

    def __init__(self, number: int, actor: object) -> None:
        self.number = number
        self.host, self.node, self.pid = "", "", 0
        self.spans = 0  # that it has, of all loaders
        self.answered = 0.0
        self.actor: Any = actor


class Team:
    """Owns the processes of a pool. Any thread may call it.

    Ray calls back in a thread of its own, which must not wait for Ray; so callbacks only take notes and ring bells, and
    no call of Ray is made with the lock held.

    Args:
        count: the number of processes.
        options: of the actors, as `ray.remote` takes them.
        name: by which other programs find the processes; None if they belong to this one.
    """

    def __init__(self, count: int, options: Mapping[str, Any], name: str | None = None) -> None:
        self._actors: Any = ray.remote(**options)(Worker)
        self._name = name
        self._lock = threading.RLock()  # over all below; the garbage collector may call this anywhere
        self._members: dict[int, Member] = {}
        self._missing = set(range(count))
        self._failures = 0  # in a row, of processes that never started
        self._failure: BaseException | None = None
        self._not_before = 0.0  # by the monotonic clock: no process is started while others are ready
        self._bells: frozenset[Bell] = frozenset()  # rung when a process is ready, or has room for a span
        self.count = count
        self.is_closed = False
        self.repair()

    def listen(self, bell: Bell) -> None:
        """Ring a bell when a process may have room for a span."""
        with self._lock:
            self._bells |= {bell}

    def unlisten(self, bell: Bell) -> None:
        """Ring it no more."""
        with self._lock:
            self._bells -= {bell}

    @property
    def ready(self) -> int:
        """The number of processes that have started, and were not lost."""
        with self._lock:
            return sum(bool(member.pid) for member in self._members.values())

    def repair(self) -> None:
        """Start the processes that are missing, unless they have failed to start, again and again, a moment ago.

        Raises:
            WorkerError: they don't start, and no other one is ready.
        """
        with self._lock:
            failure = self._failure if self._failures >= _STARTS * self.count else None
            is_working = self.ready > 0
            if failure is not None:
                self._failures = 0  # a later call tries again
                self._not_before = time.monotonic() + _PAUSE_SECONDS
            is_early = is_working and time.monotonic() < self._not_before
            missing = sorted(() if self.is_closed or is_early or failure is not None else self._missing)
            self._missing -= {*missing}
        reason = str(failure).strip()
        if failure is not None and not is_working:
            raise WorkerError(f"the processes of {self.text} don't start: {reason}") from failure
        if failure is not None:
            text = "some processes of the pool don't start, so the others compute; the next try is in %.0f seconds: %s"
            _logger.warning(text, _PAUSE_SECONDS, reason)
        for number in missing:
            member = Member(number, self._made(number))
            with self._lock:
                self._members[number] = member
            started: Future[tuple[str, str, int]] = member.actor.start.remote().future()
            started.add_done_callback(partial(self._started, member))

    @property
    def text(self) -> str:
        """A description of the processes."""
        where = "a Ray cluster" if self._name is None else f"the pool {self._name!r} of a Ray cluster"
        return f"{self.count} {'process' if self.count == 1 else 'processes'} of {where}"

    @property
    def is_shared(self) -> bool:
        """Whether other programs use the processes, too."""
        return self._name is not None

    def take(
        self,
        number: int | None = None,
        *,
        besides: Collection[Member] = (),
        late: Collection[Member] = (),
        is_idle: bool = False,
    ) -> Member | None:
        """Return a process with room for a span, the idlest one, and count that span; None if there is none.

        Args:
            number: of the only process that may have it; None for any.
            besides: the processes that have the span already, if some do; then another one takes one span more.
            late: the processes that are late with some span; one on another host is taken if there is one.
            is_idle: whether it must have no other span.
        """
        most = 1 if is_idle else _SPANS + bool(besides)
        nodes = {member.node for member in late}
        with self._lock:
            members = [each for each in self._members.values() if number is None or each.number == number]
            able = [each for each in members if each.pid and each.spans < most and each not in besides]
            member = min(able, key=lambda each: (each.node in nodes, each.spans), default=None)
            if member is not None:
                member.spans += 1
            return member

    def give_back(self, member: Member, *, has_answered: bool = True) -> None:
        """Count a span less, whether answered or never sent; any thread, also one of Ray, may call this."""
        with self._lock:
            member.spans -= 1
            if has_answered:
                member.answered = time.monotonic()
        self._ring()

    def lose(self, member: Member) -> bool:
        """Count a process as lost; return whether it wasn't yet."""
        with self._lock:
            is_first = self._members.get(member.number) is member
            if is_first:
                del self._members[member.number]
                self._missing.add(member.number)
            return is_first

    def close(self) -> None:
        """End the processes, if they belong to this program; those of a name end by themselves."""
        with self._lock:
            self.is_closed = True
            members, self._members = self._members, {}
        if self._name is None and ray.is_initialized():
            for member in members.values():
                ray.kill(member.actor)
        self._ring()

    def _made(self, number: int) -> object:
        """Start a process, or find the one that has the name."""
        if self._name is None:
            return self._actors.remote(number)
        named = self._actors.options(
            name=f"{self._name} {number}", namespace=_NAMESPACE, lifetime="detached", get_if_exists=True
        )
        return named.remote(number, _IDLE_SECONDS)

    def _started(self, member: Member, done: "Future[tuple[str, str, int]]") -> None:
        error = done.exception()
        if error is None:
            member.host, member.node, member.pid = done.result()
        else:
            self.lose(member)
        with self._lock:
            self._failures = 0 if error is None else self._failures + 1
            self._failure = error
        self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()
