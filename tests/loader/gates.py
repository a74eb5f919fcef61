"""Functions of a dataset that wait until the test opens them."""

import threading
from typing import Any

from tests.promptness import PATIENCE_SECONDS as PATIENCE_SECONDS


class Gate:
    """A function that, at one element, signals that a worker entered it and waits to be opened."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, element: Any) -> Any:
        """Return the element, after the gate is open."""
        if element == self.at:
            self.entered.set()
            assert self.opened.wait(PATIENCE_SECONDS)
        return element

    def wait_entered(self) -> None:
        """Wait until a worker is inside."""
        assert self.entered.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        """Let the waiting worker continue."""
        self.opened.set()
