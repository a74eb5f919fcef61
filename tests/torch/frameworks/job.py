"""One rank of a job of a framework: `python -m tests.torch.frameworks.job lightning FOLDER`.

The framework is imported by name, so that worker processes, which import a program's main module, don't import it.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    importlib.import_module(f"tests.torch.frameworks.{sys.argv[1]}_job").run(Path(sys.argv[2]))
