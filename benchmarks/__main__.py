"""Runs the benchmarks' command line."""

import sys

from benchmarks.command import main

sys.exit(main())
