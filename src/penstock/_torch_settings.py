"""Settings of torch on which results depend, taken over by the threads and processes that compute for a program.

Some belong to the program, others to one thread. They are those of the thread that starts the thread or process, then.
Where the program hasn't imported torch, nothing is done. The default device isn't among them: a worker process that
made a tensor on an accelerator would need a share of its memory. Neither is `inference_mode`: a thread outlives the
scope, and the tensors that it makes later must be fit for training; it computes as under `no_grad`, which gives the
same values.
"""

import sys
from types import ModuleType
from typing import Any, Final, NamedTuple

from penstock._caught import Caught

_HOST: Final = "cpu"


class ThreadSettings(NamedTuple):
    """The settings of a thread.

    Attributes:
        grad: whether gradients are recorded.
        autocast: the name of the dtype of `torch.autocast` on the host; empty if it is off.
    """

    grad: bool = True
    autocast: str = ""


class TorchSettings(NamedTuple):
    """The settings of a program, and of one of its threads.

    Attributes:
        dtype: the name of the default dtype.
        precision: of products of matrices of `float32`; empty to leave it alone.
        determinism: whether only deterministic algorithms are used: 0 for no, 1 for a warning, 2 for an error.
        flushes: whether denormal numbers become zero.
        thread: those of the thread.
    """

    dtype: str = "float32"
    precision: str = ""
    determinism: int = 0
    flushes: bool = False
    thread: ThreadSettings = ThreadSettings()


def loaded_torch() -> ModuleType | None:
    """Return torch; None if it isn't loaded, or is just being imported."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def thread_settings() -> ThreadSettings:
    """Return the settings of this thread."""
    torch: Any = loaded_torch()
    if torch is None:
        return ThreadSettings()
    casts = hasattr(torch, "get_autocast_dtype") and torch.is_autocast_enabled(_HOST)  # since torch 2.4
    return ThreadSettings(torch.is_grad_enabled(), _name(torch.get_autocast_dtype(_HOST)) if casts else "")


def torch_settings() -> TorchSettings:
    """Return the settings of this program and this thread."""
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
        sys.float_info.min / 2 == 0,
        thread_settings(),
    )


def adopt_thread_settings(settings: ThreadSettings) -> None:
    """Give these settings to this thread, which has the default ones."""
    torch: Any = loaded_torch()
    if torch is None:
        return
    if not settings.grad:
        torch.set_grad_enabled(False)
    if settings.autocast:
        torch.set_autocast_dtype(_HOST, getattr(torch, settings.autocast))
        torch.set_autocast_cache_enabled(False)  # `torch.autocast` empties it at its end, which the thread doesn't see
        torch.set_autocast_enabled(_HOST, enabled=True)


def adopt_torch_settings(settings: TorchSettings) -> None:
    """Give these settings to this process, which has loaded torch, and to this thread."""
    torch: Any = loaded_torch()
    if settings.dtype != "float32":
        torch.set_default_dtype(getattr(torch, settings.dtype))
    if settings.precision:
        torch.set_float32_matmul_precision(settings.precision)
    if settings.determinism:
        torch.set_deterministic_debug_mode(settings.determinism)
    if settings.flushes:
        torch.set_flush_denormal(True)
    adopt_thread_settings(settings.thread)


def _name(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]
