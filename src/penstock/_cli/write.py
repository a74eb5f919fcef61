"""`penstock write`: a dataset that a module describes, written to files of a common format."""

import argparse
import sys
from collections.abc import Callable

import penstock
from penstock._cli.arguments import one_of, whole_number
from penstock._cli.datasets import METAVAR, named_dataset
from penstock._cli.terminal import ENDED

_DESCRIPTION = """\
Writes the elements of a dataset to files, shard by shard. If the command is killed, give it
again: it continues with the missing shards. Several hosts share the work by --part, in one
shared folder.

NAME is a dataset in MODULE, or a function without arguments that returns one.
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "write",
        help="write a dataset to files of Arrow, Parquet, tar or JSON",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar=METAVAR, help="such as data:train; the current folder is searched first")
    parser.add_argument("path", metavar="PATH", help="the folder to write to")
    parser.add_argument("--format", default="arrow", help="arrow, parquet, tokens, tar or jsonl (default: arrow)")
    parser.add_argument(
        "--shard-bytes", metavar="SIZE", default="256MB", help="size of a shard, about (default: 256MB)"
    )
    parser.add_argument(
        "--num-workers", metavar="N", type=whole_number(0), help="processes (default: one for each processor)"
    )
    parser.add_argument(
        "--part", metavar="K/N", type=one_of("part"), default=(0, 1), help="write part K of N only, from 0/N"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    written = penstock.write(
        named_dataset(arguments.dataset),
        arguments.path,
        arguments.format,
        shard_bytes=arguments.shard_bytes,
        num_workers=arguments.num_workers,
        part=arguments.part,
    )
    shards = f"{written.shards:,} shard{'s' * (written.shards != 1)}"
    state = "complete" if written.complete else "other parts are missing"
    sys.stdout.write(
        f"{written.path}: {written.elements:,} elements in {shards}, {written.new:,} of them new; {state}\n"
    )
    return ENDED
