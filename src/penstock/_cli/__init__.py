"""The `penstock` command; each subcommand is a package or file with `add_parser` and a function that runs it."""

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

import penstock
from penstock._cli import bench, demo, index, inspect, lint, look, trace, watch, write
from penstock._cli.demo.training import RunError
from penstock._cli.terminal import ENDED, FAILED, INTERRUPTED, UNREAD, WRONG_CALL, explain_error, is_unread, opened
from penstock.errors import MissingDependencyError, SourceError, UsageError

_DESCRIPTION: Final = """\
Penstock feeds training jobs: what the model sees at step N is a pure function of the
dataset and N. Crashes, workers and restarts only decide where and when it is computed.
"""
_EPILOG: Final = f"""\
exit status:
  {ENDED}    success: all claims hold
  {FAILED}    a claim does not hold, or a run failed; a missed time limit alone is no failure
  {WRONG_CALL}    the arguments are wrong, or an optional package is missing
  {INTERRUPTED}  stopped by Ctrl-C
  {UNREAD}  the reader of the output has ended, such as `head`
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; without a command, print the help.

    Args:
        arguments: the arguments after the command's name; default: the process's own.

    Returns:
        The exit status.

    Raises:
        SystemExit: from argparse, for `--help`, `--version` and wrong arguments (status 2).
    """
    with opened("stdout"), opened("stderr"):
        parser = _parser()
        chosen = parser.parse_args(arguments)
        if chosen.run is None:
            parser.print_help()
            return ENDED
        return _status(chosen)


def _status(chosen: argparse.Namespace) -> int:
    """Run a command, and return its exit status; print an error without a traceback."""
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except (UsageError, SourceError, MissingDependencyError) as error:
        explain_error(sys.stderr, error)
        return WRONG_CALL
    except (RunError, OSError) as error:  # an OSError is the system's, or a decoder's for a file that isn't an image
        if isinstance(error, BrokenPipeError) and is_unread(sys.stdout):
            return UNREAD
        explain_error(sys.stderr, error)
        return FAILED
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; all processes have ended", file=sys.stderr)
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    about = f"penstock {penstock.__version__}"
    about += f" · Python {platform.python_version()} · NumPy {np.__version__}"
    parser.add_argument("--version", action="version", version=about)
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    demo.add_parser(commands.add_parser)
    write.add_parser(commands.add_parser)
    index.add_parser(commands.add_parser)
    inspect.add_parser(commands.add_parser)
    watch.add_parser(commands.add_parser)
    look.add_parser(commands.add_parser)
    lint.add_parser(commands.add_parser)
    bench.add_parser(commands.add_parser)
    trace.add_parser(commands.add_parser)
    return parser
