"""`penstock demo`: a training run on real digits, a cluster that loses hosts, or the user's own images."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock._cli.arguments import whole_number
from penstock._cli.demo.cluster import run_on_ray
from penstock._cli.demo.digits import Setting, run_story
from penstock._cli.demo.images import measure
from penstock._cli.terminal import Terminal

_DESCRIPTION: Final = """\
Trains a classifier on 1,797 handwritten digits, written as PNG files, twice: once
straight through, and once killed by SIGKILL in mid-epoch and resumed in a new process
with another number of workers. Then it compares the two, to the last bit.

It takes less than a minute, and needs: pip install 'penstock[demo]'
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "demo",
        help="train on real digits, be killed, resume, and compare to the last bit",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--ray",
        action="store_true",
        help="instead of training: compute the batches on three hosts of a Ray cluster on this machine, kill one, stop "
        "another, and compare; needs: pip install 'penstock[demo,ray]'",
    )
    kinds.add_argument(
        "--images",
        metavar="DIR",
        type=Path,
        help="instead of training: decode your own folder of class folders, and compare with a bare loop",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        type=Path,
        help="keep the PNG files and checkpoints here (default: nothing is kept)",
    )
    parser.add_argument(
        "--report", metavar="FILE", type=Path, default=Path("demo-report.html"), help="default: demo-report.html"
    )
    parser.add_argument(
        "--num-workers", metavar="N", type=whole_number(0), default=2, help="of the loader (default: 2)"
    )
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=whole_number(3),
        default=20,
        help="passes over the digits in each run (default: 20)",
    )
    parser.add_argument(
        "--size",
        metavar="PIXELS",
        type=whole_number(1),
        default=224,
        help="of the decoded --images, both ways (default: 224)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status, as `report.status_of` defines it."""
    terminal = Terminal(sys.stdout)
    if arguments.images is not None:
        return measure(arguments.images, arguments.size, arguments.num_workers, arguments.report, terminal)
    setting = Setting(arguments.directory, arguments.report, arguments.epochs, arguments.num_workers)
    return run_on_ray(setting, terminal) if arguments.ray else run_story(setting, terminal)
