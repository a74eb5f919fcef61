"""`penstock trace merge`: the trace of a loader and that of torch.profiler in one file, on one clock."""

import argparse
import sys
from collections.abc import Callable

from penstock._cli.terminal import ENDED
from penstock.observe._merged_traces import merge_traces, write_json

_DESCRIPTION = """\
Puts traces of one run into one file, on one clock: that of loader.trace(path), and that of
torch.profiler's export_chrome_trace(path). Open it in Perfetto (ui.perfetto.dev), or in Chrome at
chrome://tracing: the workers' steps and the training's waits are tracks beside those of torch.
Traces of several ranks can be merged, too.
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add("trace", help="merge a loader's trace with torch.profiler's", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    merge = commands.add_parser(
        "merge",
        help="merge traces of one run into one file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    merge.add_argument("first", metavar="OURS", help="a file that loader.trace(path) wrote")
    merge.add_argument("others", metavar="TORCH", nargs="+", help="a trace of torch.profiler, or of another rank")
    merge.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="the file to write; compressed if it ends in .gz"
    )
    merge.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    merged = merge_traces([arguments.first, *arguments.others])
    write_json(merged, arguments.output)
    sys.stdout.write(f"{arguments.output}: {len(merged['traceEvents']):,} events\n")
    return ENDED
