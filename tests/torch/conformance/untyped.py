"""The torch module without types, since only some of its functions have them."""

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
