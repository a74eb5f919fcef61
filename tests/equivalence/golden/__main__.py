"""Writes the golden records: `python -m tests.equivalence.golden --record`.

A record may change only when a change of bytes, seeds, fingerprints or states is intended, and the changelog tells
users of it: they find other batches at the same step, or can't load their states. A change of the code alone, however
large, must leave every record as it is. A new verb, source or sampler adds a record; the present ones stay as they are.

Without `--record` the command compares the records with this version and prints which of them differ.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.equivalence.golden.recording import PYTHON, comparable, read, record_all, write


def main() -> int:
    """Write or compare the records; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.equivalence.golden", description=__doc__)
    parser.add_argument("--record", action="store_true", help="replace the records by what this version yields")
    arguments = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # some elements fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        records = record_all(Path(folder))
    if arguments.record:
        write(records)
        return 0
    recorded = read()
    with_code = recorded["python"] == PYTHON
    differing = [
        f"{kind}: {name}"
        for kind in ("datasets", "resumes")
        for name in sorted({*recorded[kind], *records[kind]})
        if comparable(recorded[kind].get(name), with_code=with_code)
        != comparable(records[kind].get(name), with_code=with_code)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in differing) or "all records hold\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
