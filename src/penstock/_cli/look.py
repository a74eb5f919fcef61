"""`penstock look`: what the model saw at a step, of any dataset or loader that a module describes."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import penstock
from penstock._caught import Caught
from penstock._cli.datasets import METAVAR, named_loader, named_object
from penstock._cli.terminal import ENDED, FAILED, Terminal
from penstock._progress import Progress, counted
from penstock.errors import NoLengthError, StateError, UsageError
from penstock.observe import Look
from penstock.observe._look import page_of

_DESCRIPTION = """\
Shows the batch of a step: pictures, texts, masks and numbers of each row, with the record that
it comes from. Any step can be shown, without a training run: the batch is computed here.

NAME is a dataset or a loader in MODULE, or a function without arguments that returns one. With
--against it says at which step two of them first differ, and exits with status 1 if they do.
"""
_ROWS: Final = 16
_STEPS: Final = (0, 100)


class Steps:
    """The steps of a loader, each of which can be looked at; a dataset that is read in order is read up to it.

    Args:
        name: the text that named the loader.
        loader: the loader.
        decode: as in `Loader.look`.
    """

    def __init__(self, name: str, loader: penstock.Loader[Any], decode: Callable[..., object] | None) -> None:
        self.name = name
        self._loader = loader
        self._decode = decode
        self._batches: Iterator[object] | None = None

    def look(self, step: int) -> Look:
        """Return what the model sees at a step.

        Raises:
            StateError: the dataset has no such step.
        """
        with Caught(StateError) as caught:
            return self._loader.look(step, decode=self._decode)
        if self._is_indexed() or self._loader.steps_done > step:
            raise caught.taken()
        self._read(step)
        return self._loader.look(step, decode=self._decode)

    def _is_indexed(self) -> bool:
        try:
            len(self._loader)
        except NoLengthError:
            return False
        return True

    def _read(self, step: int) -> None:
        """Read the batches up to that of a step, which is then one of the last ones."""
        loader = self._loader
        with Progress(f"reading in order up to step {step:,}", step - loader.steps_done, amount=counted) as progress:
            before = -1
            while loader.steps_done <= step:
                if self._batches is None:
                    if loader.steps_done == before:
                        raise StateError(f"the dataset has no step {step:,}: the epoch after step {before:,} is empty")
                    before, self._batches = loader.steps_done, iter(loader)
                if next(self._batches, self) is self:
                    self._batches = None
                progress.advance(1)


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "look",
        help="show what the model saw at a step",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar=METAVAR, help="such as data:train; the current folder is searched first")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--step", metavar="N", type=_count, default=0, help="the step to show (default: 0)")
    what.add_argument("--compare-steps", metavar=("A", "B"), nargs=2, type=_count, help="show two steps, and compare")
    what.add_argument("--against", metavar=METAVAR, help="find the first step at which this one differs")
    parser.add_argument(
        "--steps", metavar="A:B", type=_span, help=f"the steps for --against (default: {_STEPS[0]}:{_STEPS[1]})"
    )
    parser.add_argument("--rank", metavar="K/N", type=_rank, help="the rows of rank K of N only, from 0/N")
    parser.add_argument("--decode", metavar="MODULE:FUNCTION", help="makes text of the integers of an array")
    parser.add_argument("--rows", metavar="N", type=_count, default=_ROWS, help=f"rows to print (default: {_ROWS})")
    parser.add_argument("--html", metavar="FILE", help="write a page with all rows, and pictures, instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if two descriptions differ."""
    if arguments.steps and not arguments.against:
        raise UsageError("--steps is for --against; give --step N for one step")
    decode = None if arguments.decode is None else _decoder(arguments.decode)
    with ExitStack() as loaders:
        names = [arguments.name, *([arguments.against] if arguments.against else [])]
        found = [Steps(name, loaders.enter_context(named_loader(name, arguments.rank)), decode) for name in names]
        if arguments.against:
            return _compare(found[0], found[1], arguments)
        steps = arguments.compare_steps or [arguments.step]
        by_step = {step: found[0].look(step) for step in sorted(steps)}  # a dataset may be readable in order only
        looks = [by_step[step] for step in steps]
        notes = _notes(*looks) if len(looks) > 1 else []
        _show(looks, notes, arguments)
        return ENDED


def _compare(one: Steps, two: Steps, arguments: argparse.Namespace) -> int:
    start, stop = arguments.steps or _STEPS
    with Progress("comparing steps", stop - start, amount=counted) as progress:
        for step in range(start, stop):
            looks = [one.look(step), two.look(step)]
            difference = looks[0].difference(looks[1])
            if difference:
                break
            progress.advance(1)
        else:
            sys.stdout.write(f"steps {start:,} to {stop - 1:,} of {one.name} and {two.name} are equal\n")
            return ENDED
    note = f"{one.name} and {two.name} first differ at step {step:,}: {difference}"
    _show(looks, [note], arguments)
    return FAILED


def _notes(one: Look, two: Look) -> list[str]:
    """Return what two steps have in common, and where they differ."""
    pairs = one.in_both(two)
    listed = ", ".join(f"rows {first} and {second}" for first, second in pairs)
    same = f"records in both: {len(pairs):,}" + (f" ({listed})" if pairs else "")
    difference = one.difference(two)
    return [same, f"the first difference: {difference}" if difference else "the two batches are equal"]


def _show(looks: list[Look], notes: list[str], arguments: argparse.Namespace) -> None:
    if arguments.html:
        path = Path(arguments.html)
        path.write_text(page_of(looks, notes), encoding="utf-8")
        sys.stdout.write("".join(f"{note}\n" for note in notes) + f"{path}\n")
        return
    terminal = Terminal(sys.stdout)
    for look in looks:
        terminal.line(look.text(columns=terminal.columns, colours=terminal.colours, rows=arguments.rows))
        terminal.line()
    for note in notes:
        terminal.line(note)


def _decoder(text: str) -> Callable[..., object]:
    found = named_object(text)
    if not callable(found):
        raise UsageError(f"--decode must name a function, such as data:tokenizer.decode; {text} is {found!r}")
    return found


def _count(text: str) -> int:
    if not text.isdecimal():
        message = f"a whole number of at least 0 is needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _span(text: str) -> tuple[int, int]:
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        message = f"steps A:B, from A and before B, are needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(start), int(stop)


def _rank(text: str) -> penstock.Shard:
    rank, _, count = text.partition("/")
    if not (rank.isdecimal() and count.isdecimal() and int(rank) < int(count)):
        message = f"rank K of N, with K from 0 and below N, is needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return penstock.Shard(int(rank), int(count))
