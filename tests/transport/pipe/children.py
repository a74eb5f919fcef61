"""Functions that child processes of these tests run; importable, for every start method."""

import multiprocessing
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from penstock.transport import TensorPipeReader, TensorPipeWriter

LARGE = 40_000  # float64 values: more than goes through the socket


def element_of(step: int, count: int = LARGE) -> dict[str, Any]:
    """Return an element whose values all identify it."""
    return {"x": np.full(count, step, np.float64), "step": step, "name": f"step {step}"}


def is_element(element: Any, step: int, count: int = LARGE) -> bool:
    """Return whether an object is the whole element of a step."""
    expected = element_of(step, count)
    return (
        list(element) == list(expected)
        and bool((element["x"] == step).all())
        and element["x"].shape == (count,)
        and (element["step"], element["name"]) == (step, expected["name"])
    )


def send_steps(address: str, count: int, first: int = 0) -> None:
    """Send elements, one after the other."""
    with TensorPipeWriter(address) as writer:
        for step in range(first, first + count):
            writer.send(element_of(step))


def send_for_ever(address: str, ready: Any) -> None:
    """Send until killed; set an event at the beginning."""
    with TensorPipeWriter(address) as writer:
        ready.set()
        step = 0
        while True:
            writer.send(element_of(step))
            step += 1


def send_and_fail(address: str, *, allow_pickle: bool) -> None:
    """Send one element, then fail."""
    with TensorPipeWriter(address, allow_pickle=allow_pickle) as writer:
        writer.send(element_of(0))
        raise KeyError("no such file: 'a'")


def listen_and_vanish(address: str) -> None:
    """Listen, and exit without closing."""
    reader = TensorPipeReader(address)
    os._exit(reader.messages)


def send_with_a_child_that_keeps_the_socket(address: str, pids: Any) -> None:
    """Send one element, fork a child that sleeps on with every descriptor, then die."""
    writer = TensorPipeWriter(address)
    writer.send(element_of(0))
    child = os.fork()
    if child == 0:
        threading.Event().wait()
    pids.put(child)
    pids.close()
    pids.join_thread()
    os._exit(7)


def receive_and_keep(address: str, count: int, ready: Any, kept: Any) -> None:
    """Listen and say so; receive elements, keep them, say so and wait to be killed."""
    with TensorPipeReader(address) as reader:
        ready.set()
        elements = [reader.receive() for _ in range(count)]
        kept.set()
        threading.Event().wait()
        del elements


def receive_for_ever(address: str, ready: Any) -> None:
    """Receive until killed."""
    with TensorPipeReader(address) as reader:
        ready.set()
        for _ in reader:
            pass


@contextmanager
def running(method: str, function: Any, *arguments: Any) -> Generator[BaseProcess]:
    """Run a function in a process, which is over in the end: killed, if it has to be."""
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=function, args=arguments)
    process.start()
    try:
        yield process
        process.join(20)
    finally:
        process.kill()
        process.join()
        process.close()


def free_path(folder: Any) -> str:
    """Return the path of a socket without a listener."""
    return str(folder / "reader.sock")


def sanitized() -> bool:
    """Return whether this process runs under a sanitizer, whose own memory varies."""
    return "san.so" in os.environ.get("LD_PRELOAD", "")
