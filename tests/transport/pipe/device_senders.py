"""Writers of tensors on a GPU, for processes of their own."""

import importlib
from typing import Any

from penstock.transport import TensorPipeWriter

LARGE = 4_000_000  # items


def send_computed(address: str, count: int, answers: Any) -> None:
    """Send what long kernels compute, and overwrite it at once; end when the reader says so."""
    torch: Any = importlib.import_module("torch")
    with TensorPipeWriter(address, allow_pickle=True, capacity=4) as writer:
        x = torch.zeros(LARGE, device="cuda")
        for step in range(count):
            torch.cuda._sleep(20_000_000)  # noqa: SLF001 - torch's own way to keep a stream busy
            x.fill_(step)
            writer.send({"x": x, "y": x[::2].to(torch.bfloat16), "step": step})
            x.fill_(-1)
    answers.recv()


def send_without_waiting(address: str, answers: Any) -> None:
    """Report whether `send` returned while the stream was still busy; end when the reader says so."""
    torch: Any = importlib.import_module("torch")
    with TensorPipeWriter(address, allow_pickle=True) as writer:
        x = torch.zeros(1000, device="cuda")
        x += 0  # CUDA loads a kernel when it is first used, and waits for the device
        writer.send(x)  # makes the slot
        answers.recv()
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # noqa: SLF001 - torch's own way to keep a stream busy
        x += 5
        done = torch.cuda.Event()
        done.record()
        writer.send(x)
        answers.send(not done.query())
    answers.recv()
