"""What a forked process does until it runs what it was forked for: it waits to be told, and becomes like the program.

It says nothing to the server. It ends when the server closes its link, as long as it is blank, and with the program
from then on.
"""

import importlib
import os
import pickle
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Final, NoReturn

from penstock._caught import Caught
from penstock._processes._begin import watch_parent
from penstock._processes._fork_server._preparation import Preparation, adopt, inheriting

START: Final = b"start"
MAX_DESCRIPTORS: Final = 250  # that go along with a message; the system takes 253
_inherited: Final[list[int]] = []


class ForkedDescriptor:
    """A descriptor among the arguments of a process, as `multiprocessing` sends it; `detach` gives it there."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """Return the descriptor."""
        return _inherited[self._place]


class ForkedProgram(BaseProcess):
    """What a process runs, as `multiprocessing` describes it; never started by itself."""

    _start_method = None  # the processes of this one are started as those of the program
    _bootstrap: Callable[..., int]

    def run_all(self, parent: int) -> int:
        """Run it as `multiprocessing` does, with all that belongs to a process of its own.

        Args:
            parent: the descriptor that tells of the program's end.

        Returns:
            The exit code.
        """
        return self._bootstrap(parent_sentinel=parent)


def name_process(name: str) -> None:
    """Have the system's lists show this process by a name of at most 15 characters."""
    with suppress(OSError), open("/proc/self/comm", "w") as shown:
        shown.write(name)


def serve_blank(link: socket.socket, program: int) -> NoReturn:
    """Wait for what to run, run it, and end.

    Args:
        link: the server sends what to run through it: as the message, START with the number of each standard stream
            that is open; and as descriptors, memory that holds a `Preparation` and a process object, the streams, and
            those that are inherited.
        program: a descriptor of the program, which becomes readable when it has ended.
    """
    name_process("penstock-spare")
    code = 1
    with Caught() as caught:
        message, descriptors, _, _ = socket.recv_fds(link, 16, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        link.close()
        if descriptors:
            code = _run(message[len(START) :], descriptors, program)
            run: Callable[[], None] = vars(importlib.import_module("atexit"))["_run_exitfuncs"]
            run()  # what others have registered, as in a spawned process, which ends like any Python
            sys.stdout.flush()
    if isinstance(caught.error, SystemExit) and isinstance(caught.error.code, int | None):
        code = caught.error.code or 0  # the main module's
    elif caught.error is not None:
        sys.excepthook(type(caught.error), caught.error, caught.error.__traceback__)
        sys.stderr.flush()
    os._exit(code)


def _run(streams: bytes, descriptors: list[int], program: int) -> int:
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
