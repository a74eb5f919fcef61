"""`penstock look`: what the model saw at a step, of any dataset or loader that a module describes."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import penstock
from penstock._caught import Caught
from penstock._cli.arguments import one_of, whole_number
from penstock._cli.datasets import METAVAR_OR_PATH, NAME_HELP, named_loader, named_object
from penstock._cli.look_server import LookServer
from penstock._cli.terminal import ENDED, FAILED, Terminal
from penstock._progress import Progress, counted
from penstock.errors import NoLengthError, StateError, UsageError
from penstock.observe import Look
from penstock.observe._look import page_of

_DESCRIPTION = """\
Shows the batch of a step: pictures, texts, masks and numbers of each row, with the record that
it comes from. Any step can be shown, without a training run: the batch is computed here.

NAME is a dataset or a loader in MODULE, or a function without arguments that returns one; or a
file or folder of records. With --against it says at which step two of them first differ, and
exits with status 1 if they do. With --row it shows a row after each step of the dataset.
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

    def look(self, step: int, row: int | None = None) -> Look:
        """Return what the model sees at a step, or one row after each step of the dataset.

        Raises:
            StateError: the dataset has no such step.
            UsageError: the batch has no such row, or the dataset is read in order, and a row is given.
        """
        with Caught(StateError) as caught:
            return self._shown(step, row)
        if self._is_indexed() or self._loader.steps_done > step:
            raise caught.taken()
        self._read(step)
        return self._shown(step, row)

    def _shown(self, step: int, row: int | None) -> Look:
        try:
            return self._loader.look(step, row=row, decode=self._decode)
        except IndexError as error:
            raise UsageError(f"--row: {error}") from None

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
    parser.add_argument("name", metavar=METAVAR_OR_PATH, help=NAME_HELP)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--step", metavar="N", type=whole_number(0), default=0, help="the step to show (default: 0)")
    what.add_argument(
        "--compare-steps", metavar=("A", "B"), nargs=2, type=whole_number(0), help="show two steps, and compare"
    )
    what.add_argument("--against", metavar=METAVAR_OR_PATH, help="find the first step at which this one differs")
    parser.add_argument(
        "--steps", metavar="A:B", type=_span, help=f"the steps for --against (default: {_STEPS[0]}:{_STEPS[1]})"
    )
    parser.add_argument(
        "--row", metavar="N", type=whole_number(0), help="show this row alone, after each step of the dataset"
    )
    parser.add_argument("--rank", metavar="K/N", type=one_of("rank"), help="the rows of rank K of N only, from 0/N")
    parser.add_argument("--decode", metavar="MODULE:FUNCTION", help="makes text of the integers of an array")
    parser.add_argument(
        "--rows", metavar="N", type=whole_number(0), default=_ROWS, help=f"rows to print (default: {_ROWS})"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--html", metavar="FILE", help="write a page with all rows, and pictures, instead")
    where.add_argument(
        "--serve",
        metavar="PORT",
        nargs="?",
        type=whole_number(0),
        const=0,
        help="show pages of any step in a browser on this machine, until Ctrl-C (default: a free port)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if two descriptions differ."""
    _check(arguments)
    decode = None if arguments.decode is None else _decoder(arguments.decode)
    with ExitStack() as loaders:
        shard = None if arguments.rank is None else penstock.Shard(*arguments.rank)
        names = [arguments.name, *([arguments.against] if arguments.against else [])]
        found = [Steps(name, loaders.enter_context(named_loader(name, shard)), decode) for name in names]
        if arguments.against:
            return _compare(found[0], found[1], arguments)
        if arguments.serve is not None:
            return _serve(found[0], arguments)
        steps = arguments.compare_steps or [arguments.step]
        by_step = {
            step: found[0].look(step, arguments.row) for step in sorted(steps)
        }  # a dataset may be readable in order only
        looks = [by_step[step] for step in steps]
        notes = _notes(*looks) if len(looks) > 1 else []
        _show(looks, notes, arguments)
        return ENDED


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that don't go together.

    Raises:
        UsageError: there are some.
    """
    if arguments.steps and not arguments.against:
        raise UsageError("--steps is for --against; give --step N for one step")
    two = "--against" if arguments.against else "--compare-steps" if arguments.compare_steps else ""
    one = "--row" if arguments.row is not None else "--serve" if arguments.serve is not None else ""
    if one and two:
        raise UsageError(f"{one} shows one step, and {two} compares two; leave one of them out")


def _serve(steps: Steps, arguments: argparse.Namespace) -> int:
    """Serve pages until Ctrl-C."""
    try:
        server = LookServer(lambda step: steps.look(step, arguments.row), arguments.serve, arguments.step)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--serve {arguments.serve}: {error}; give another port, or none for a free one") from None
    with server, suppress(KeyboardInterrupt):
        sys.stdout.write(f"{server.address} shows the steps of {steps.name}; Ctrl-C ends it\n")
        sys.stdout.flush()
        server.serve_forever()
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


def _span(text: str) -> tuple[int, int]:
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        message = f"steps A:B, from A and before B, are needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(start), int(stop)
