"""`python -m penstock._cli` runs the `penstock` command in a checkout where it isn't installed."""

import sys

from penstock._cli import main

if __name__ == "__main__":
    sys.exit(main())
