"""Functions and a source that take a while; a process that runs them imports no test."""

import threading
import time
from typing import Any


def wait(element: Any) -> Any:
    """Return the element after a while, as a decoder that releases the GIL does."""
    threading.Event().wait(0.005)
    return element


class SlowSource:
    """Records that take a while to read."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, key: int) -> dict[str, int]:
        return {"number": int(wait(key))}


def hold(number: int) -> int:
    """Return the number after computing with the interpreter's lock, for some of its switch intervals."""
    ends = time.thread_time() + 0.012
    while time.thread_time() < ends:
        pass
    return number
