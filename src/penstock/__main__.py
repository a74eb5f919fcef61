"""`python -m penstock` runs the `penstock` command."""

import sys

from penstock._cli import main

if __name__ == "__main__":
    sys.exit(main())
