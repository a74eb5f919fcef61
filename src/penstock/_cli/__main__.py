"""`python -m penstock._cli` is the `penstock` command, for a checkout in which nothing is installed."""

import sys

from penstock._cli import main

if __name__ == "__main__":
    sys.exit(main())
