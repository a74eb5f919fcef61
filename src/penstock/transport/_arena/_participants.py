"""The participants of an arena beside its owner, and the ends of their processes. Used under the owner's lock."""

import io
import os

from penstock._processes import has_ended
from penstock.errors import UsageError
from penstock.transport._arena._table import MAX_PARTICIPANTS, ArenaTable


class Participants:
    """The participants beside the owner; it holds the descriptors of their processes.

    Args:
        table: the arena's table.
    """

    def __init__(self, table: ArenaTable) -> None:
        self._table = table
        self._invited: set[int] = set()
        self._processes: dict[int, io.FileIO] = {}
        self._ended: set[int] = set()
        self._leaving: dict[int, int] = {}  # acknowledgements after which each is released

    def invite(self, process_descriptor: int) -> int:
        """Return a free number.

        Raises:
            UsageError: all are in use.
        """
        self._release_finished()
        free = set(range(1, MAX_PARTICIPANTS + 1)) - self._invited
        if not free:
            raise UsageError(
                f"an arena has at most {MAX_PARTICIPANTS} participants beside its owner, and all are invited; "
                "release those that have ended, close some of the pipes that share it, or use a second arena"
            )
        participant = min(free)
        if process_descriptor >= 0:
            self._processes[participant] = io.FileIO(os.dup(process_descriptor))
        self._invited.add(participant)
        self._table.welcome(participant)
        return participant

    def release(self, participant: int) -> int:
        """Remove all holds of a participant, and free its number.

        Returns:
            The number of its holds.

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
        """Release a participant once it holds nothing and has acknowledged so often, or once its process has ended.

        Raises:
            UsageError: it isn't invited.
        """
        self.check(participant)
        self._leaving[participant] = acknowledgements
        self._release_finished()

    def take_back(self) -> int:
        """Remove all holds of participants whose processes have ended.

        Returns:
            The number of those holds.
        """
        ended = [participant for participant, process in self._processes.items() if has_ended(process)]
        for participant in ended:
            self._processes.pop(participant).close()
        self._ended.update(ended)
        holds = sum(map(self._table.release, self._ended))
        self._release_finished()
        return holds

    def check(self, participant: int) -> None:
        """Do nothing if a participant is invited.

        Raises:
            UsageError: it isn't.
        """
        if participant not in self._invited:
            raise UsageError(
                f"participant must be a number that invite() returned and that was not released; got {participant}"
            )

    def close(self) -> None:
        """Close the descriptors."""
        for process in self._processes.values():
            process.close()
        self._processes = {}

    def _release_finished(self) -> None:
        for participant, acknowledgements in list(self._leaving.items()):
            done = self._table.acknowledged(participant) >= acknowledgements
            empty = self._table.returned(participant) == self._table.leased(participant)
            if participant in self._ended or (done and empty):
                self.release(participant)
