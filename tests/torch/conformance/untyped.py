"""Torch, whose functions are typed in parts only, as a module without types."""

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
