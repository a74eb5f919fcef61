"""Compares this version with the golden records, and prints which of them differ.

    python -m tests.equivalence.golden
    python -m tests.equivalence.golden --record             adds the records that are missing
    python -m tests.equivalence.golden --record 'pack*'     replaces those of such names, too

A record may be replaced only when a change of bytes, seeds, fingerprints or states is intended, and the changelog tells
users of it: they find other batches at the same step, or can't load their states. A change of the code alone, however
large, must leave every record as it is. A new verb, source or sampler adds a record; the present ones stay as they are.
"""

import argparse
import logging
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from tests.equivalence.golden.recording import PYTHON, Record, comparable, read, record_all, write


def main() -> int:
    """Compare or write the records; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.equivalence.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", nargs="*", metavar="NAME", help="write records: missing ones, and those replaced")
    replaced: list[str] | None = parser.parse_args().record
    recorded = read()
    with_code = recorded["python"] == PYTHON
    logging.getLogger("penstock").setLevel(logging.ERROR)  # some elements fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        records = record_all(Path(folder), {} if replaced is None else _without(recorded, replaced))
    if replaced is not None:
        if not with_code:
            parser.error(f"the records are of Python {recorded['python']}, and this is {PYTHON}: use that version")
        write(records)
        return 0
    differing = [
        f"{kind}: {name}"
        for kind in ("datasets", "resumes")
        for name in sorted({*recorded[kind], *records[kind]})
        if comparable(recorded[kind].get(name), with_code=with_code)
        != comparable(records[kind].get(name), with_code=with_code)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in differing) or "all records hold\n")
    return 1 if differing else 0


def _without(records: Record, patterns: list[str]) -> Record:
    """Return the records without those whose names match a pattern."""
    return {
        kind: {name: each for name, each in records[kind].items() if not any(fnmatch(name, one) for one in patterns)}
        for kind in ("datasets", "resumes", "files")
    }


if __name__ == "__main__":
    sys.exit(main())
