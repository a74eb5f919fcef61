"""`penstock index`: the indexes of files, written beside them for all machines that read these."""

import argparse
import os
import sys
from collections.abc import Callable

from penstock._cli.datasets import METAVAR, named_dataset
from penstock._cli.terminal import ENDED
from penstock._printable import printable
from penstock.errors import UsageError
from penstock.sources import as_source, indexing_beside

_DESCRIPTION = f"""\
Finds the records of files, and writes their places to a folder .penstock beside them. Sources
of these files, on any machine, then read no file to find its records. Without the command, each
machine does so at the first use, and keeps the places in its own cache.

With a path, it finds records as ps.read(path) does. With {METAVAR}, it indexes the files of all
sources of a dataset, with their arguments, such as some columns of Parquet. NAME is a dataset in
MODULE, or a function without arguments that returns one.

A file that changes later is indexed again by the sources that read it.
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "index",
        help="find the records of files once for all machines",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help=f"a file, a glob or a folder, as for ps.read, or {METAVAR}"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status.

    Raises:
        UsageError: no source of a dataset has an index.
    """
    with indexing_beside() as files:  # of all arguments: one import of a module makes the sources of all its datasets
        for path in arguments.paths:
            if not _is_dataset(path):
                sys.stdout.write(printable(f"{path}: {as_source(path)!r}") + "\n")
                continue
            named_dataset(path)
            if not files:
                raise UsageError(f"{path} has no source that keeps an index; there is nothing to write")
            sys.stdout.write(f"{path}: the files of its sources are indexed, {len(files):,} so far\n")
    return ENDED


def _is_dataset(text: str) -> bool:
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *name.split("."))) and not os.path.exists(text)
