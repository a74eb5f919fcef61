"""Who is invited to an arena, and which of their processes have ended. Used under the owner's lock."""

import io
import os

from penstock._processes._pidfd import has_ended
from penstock.errors import UsageError
from penstock.transport._arena._table import MAX_PARTICIPANTS, ArenaTable


class Guests:
    """The participants beside the owner; holds the descriptors of their processes.

    Args:
        table: the arena's.
    """

    def __init__(self, table: ArenaTable) -> None:
        self._table = table
        self._invited: set[int] = set()
        self._processes: dict[int, io.FileIO] = {}
        self._ended: set[int] = set()
        self._leaving: dict[int, int] = {}  # how often each must have acknowledged before it is gone

    def invite(self, process_descriptor: int) -> int:
        """Return a free number.

        Raises:
            UsageError: there is none.
        """
        self._let_go()
        free = set(range(1, MAX_PARTICIPANTS + 1)) - self._invited
        if not free:
            raise UsageError(
                f"an arena has at most {MAX_PARTICIPANTS} participants beside its owner, and all are invited; "
                "release those that are gone, close some of the pipes that share it, or give others an arena of their "
                "own"
            )
        participant = min(free)
        if process_descriptor >= 0:
            self._processes[participant] = io.FileIO(os.dup(process_descriptor))
        self._invited.add(participant)
        self._table.welcome(participant)
        return participant

    def release(self, participant: int) -> int:
        """Take back all that a participant holds, and its number.

        Returns:
            How many holds it had.

        Raises:
            UsageError: it isn't invited.
        """
        self.check(participant)
        self._invited.remove(participant)
        self._ended.discard(participant)
        self._leaving.pop(participant, None)
        if participant in self._processes:
            self._processes.pop(participant).close()
        return self._table.release(participant)

    def dismiss(self, participant: int, acknowledgements: int) -> None:
        """Release a participant once it has nothing left and acknowledged so often, or its process has ended.

        Raises:
            UsageError: it isn't invited.
        """
        self.check(participant)
        self._leaving[participant] = acknowledgements
        self._let_go()

    def take_back(self) -> int:
        """Take back all that participants hold whose processes have ended.

        Returns:
            How many holds they had.
        """
        ended = [participant for participant, process in self._processes.items() if has_ended(process)]
        for participant in ended:
            self._processes.pop(participant).close()
        self._ended.update(ended)
        holds = sum(map(self._table.release, self._ended))
        self._let_go()
        return holds

    def check(self, participant: int) -> None:
        """Do nothing if a participant is invited.

        Raises:
            UsageError: it isn't.
        """
        if participant not in self._invited:
            raise UsageError(f"participant must be a number that invite() gave and nobody released; got {participant}")

    def close(self) -> None:
        """Close the descriptors."""
        for process in self._processes.values():
            process.close()
        self._processes = {}

    def _let_go(self) -> None:
        for participant, acknowledgements in list(self._leaving.items()):
            done = self._table.acknowledged(participant) >= acknowledgements
            empty = self._table.returned(participant) == self._table.leased(participant)
            if participant in self._ended or (done and empty):
                self.release(participant)
