"""Settings of torch that belong to the program, taken over by the processes that compute for it.

They are those of the time at which a process starts. Where the program hasn't imported torch, nothing is done. The
modes of one thread, such as `no_grad`, `autocast` and `set_flush_denormal`, aren't among them: workers outlive the
scope of a mode, and would compute other values than the program after it. The default device isn't, either: a worker
process that made a tensor on an accelerator would need a share of its memory.
"""

import sys
from types import ModuleType
from typing import Any, NamedTuple

from penstock._caught import Caught


class TorchSettings(NamedTuple):
    """The settings of a program.

    Attributes:
        dtype: the name of the default dtype.
        precision: of products of matrices of `float32`; empty to leave it alone.
        determinism: whether only deterministic algorithms are used: 0 for no, 1 for a warning, 2 for an error.
    """

    dtype: str = "float32"
    precision: str = ""
    determinism: int = 0


def loaded_torch() -> ModuleType | None:
    """Return torch; None if it isn't loaded, or is just being imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def torch_settings() -> TorchSettings:
    """Return the settings of this program."""
    torch: Any = loaded_torch()
    if not hasattr(torch, "get_float32_matmul_precision"):  # another thread is importing it, if it is there
        return TorchSettings()
    precision = ""
    with Caught(RuntimeError):  # the program sets it for each backend
        precision = str(torch.get_float32_matmul_precision())
    return TorchSettings(
        _name(torch.get_default_dtype()),
        "" if precision == "highest" else precision,
        torch.get_deterministic_debug_mode(),
    )


def adopt_torch_settings(settings: TorchSettings) -> None:
    """Give these settings to this process, which has loaded torch."""
    torch: Any = loaded_torch()
    if settings.dtype != "float32":
        torch.set_default_dtype(getattr(torch, settings.dtype))
    if settings.precision:
        torch.set_float32_matmul_precision(settings.precision)
    if settings.determinism:
        torch.set_deterministic_debug_mode(settings.determinism)


def _name(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]
