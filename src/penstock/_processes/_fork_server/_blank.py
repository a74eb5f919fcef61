"""A blank process: just forked, it waits for the message that says what to run, becomes like the program, and runs it.

It sends nothing to the server. As long as it is blank it ends when the server closes the link; afterwards it ends with
the program.
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
MAX_DESCRIPTORS: Final = 250  # sent with one message; the system allows 253
_inherited: Final[list[int]] = []


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
    with suppress(OSError), open("/proc/self/comm", "w") as shown:
        shown.write(name)


def serve_blank(link: socket.socket, program: int) -> NoReturn:
    """Wait for the work, do it, and end.

    Args:
        link: the server sends the work through it. The message is START with the number of each standard stream that
            is open. The descriptors are memory that holds a `Preparation` and a process object, the streams, and those
            that the process inherits.
        program: a pidfd of the program.
    """
    name_process("penstock-spare")
    code = 1
    with Caught() as caught:
        message, descriptors, _, _ = socket.recv_fds(link, 16, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        link.close()
        if descriptors:
            code = _run(message[len(START) :], descriptors, program)
            run: Callable[[], None] = vars(importlib.import_module("atexit"))["_run_exitfuncs"]
            run()  # as in a spawned process, which ends like any Python
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
