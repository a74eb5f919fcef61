"""torch.utils.data.DataLoader: records read many at once through `__getitems__`, inline and with 2 worker processes.

Between processes, the queue of torch.multiprocessing, which moves a tensor into new shared memory as it is put.
"""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import cProfile
import io
import os
import pstats
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from benchmarks.carry.child import IN_FLIGHT, Ends, Send, open_carrier
from benchmarks.carry.messages import Message, from_leaves, leaves
from benchmarks.macro import import_time, readings, tiny, tokens, tokens_as_int32, transport, variations
from benchmarks.rivals import Contestants, torch_media, torch_processes, torch_stack
from benchmarks.rivals.torch_processes import KINDS, Kind
from benchmarks.scenario import Contestant, Goal, Measurement, Output, Role
from benchmarks.streams import passes

PLACES = ((0, "inline"), (2, "2 processes"))


class Numbers:
    """The integers of `tiny`, mapped in the dataset."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: int) -> int:
        return tiny.add_one(key)

    def __getitems__(self, keys: list[int]) -> list[int]:
        return [tiny.add_one(key) for key in keys]


class Windows:
    """The windows of `tokens`, gathered by fancy indexing; `__getitems__` gives the batch as one array."""

    def __init__(self, work: tokens.Work) -> None:
        mapped = np.memmap(work.path, np.dtype("<u2"), "r")
        self.windows = np.lib.stride_tricks.sliding_window_view(mapped, work.length)[:: work.stride]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, key: int) -> NDArray[np.uint16]:
        return np.array(self.windows[key])

    def __getitems__(self, keys: list[int]) -> NDArray[np.uint16]:
        return self.windows[keys]


def _tiny(work: tiny.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    numbers = Numbers(work.count)
    return _each(
        partial(_open, scope, numbers, batch_size=work.batch_size),
        lambda name, role, batches: Contestant(
            name, role, passes(batches), tiny.UNIT, against=tiny.LIMITS, output=Output(tiny.CLAIM, batches)
        ),
    )


def _tokens(work: tokens.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    windows = Windows(work)
    made = _each(
        partial(_open, scope, windows, batch_size=work.batch_size, shuffle=True, collate_fn=torch.from_numpy),
        lambda name, role, batches: Contestant(
            name,
            role,
            passes(batches),
            tokens.UNIT,
            against=(tokens.LIMIT,),
            output=Output(tokens.CLAIM, batches, ordered=False),
        ),
    )
    goal = Goal("share", 0.4)
    return (*made[:-1], replace(made[-1], against=(tokens.LIMIT,), goal=goal))  # the last one is ours, with workers


def _tokens_as_int32(work: tokens.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return torch's loader and the drop-in, which cast in their collate function."""
    windows = Windows(work)
    opened = partial(_open, scope, windows, batch_size=work.batch_size, shuffle=True, collate_fn=_tensor_as_int32)
    limit = tokens_as_int32.LIMIT
    return _each(
        opened, lambda name, role, batches: tokens_as_int32.contestant(name, role, batches, limit, ordered=False)
    )


def _tensor_as_int32(batch: NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(batch.astype(np.int32))


def _each(
    opened: Callable[[Kind, int], DataLoader[Any]],
    contestant: Callable[[str, Role, Callable[[], DataLoader[Any]]], Contestant],
) -> tuple[Contestant, ...]:
    """Return the contestants of both kinds of loader, in every place."""
    made: list[Contestant] = []
    for kind, (num_workers, place) in product(KINDS, PLACES):
        loader = opened(kind, num_workers)
        named = f"{kind.name}, __getitems__ {place}"
        made.append(kind.compared(contestant(named, kind.role, partial(_same, loader))))
    return tuple(made)


def _same(loader: DataLoader[Any]) -> DataLoader[Any]:
    return loader


def _open(
    scope: ExitStack,
    dataset: Any,  # noqa: ANN401 - torch needs no base class, though its types say so
    kind: Kind,
    num_workers: int,
    **options: Any,  # noqa: ANN401 - torch's own
) -> DataLoader[Any]:
    """Open a loader whose workers start now, by fork, before contestants have started threads; the scope ends them."""
    loader = kind.made(dataset, num_workers=num_workers, persistent_workers=num_workers > 0, **options)
    for _ in zip(range(1), loader, strict=False):
        pass
    scope.callback(torch_processes.stop, loader)
    return loader


def _variations(work: variations.Work, _: ExitStack) -> tuple[Contestant, ...]:
    """Return torch's loader and the drop-in, inline and with workers."""
    if work.above:
        return ()
    made: list[Contestant] = []
    for kind, (num_workers, place) in product(KINDS, PLACES):
        opened = partial(_opened, kind, work, num_workers)
        contestant = variations.contestant(work, f"{work.name}: {kind.name} {place}", kind.role, opened)
        has_goal = kind.role == "ours" and num_workers and work.microseconds == 1
        made.append(replace(contestant, goal=Goal("share", 0.3)) if has_goal else contestant)
    return tuple(made)


def _opened(kind: Kind, work: variations.Work, num_workers: int) -> DataLoader[Any]:
    dataset: Any = work  # torch needs no base class, though its types say so
    collate = variations.merged if work.is_merged else None
    return kind.made(dataset, batch_size=work.batch_size, num_workers=num_workers, collate_fn=collate)


def _import(work: import_time.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return (import_time.importing(work, "import torch.utils.data", "rival"),)


def _transport(work: transport.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    return transport.carried(
        work, scope, transport.Way("torch.multiprocessing.Queue", "rival", partial(open_carrier, _open_queue))
    )


def _open_queue(scope: ExitStack, _: int) -> Ends:
    """Return the ends of a queue of CPU tensors."""
    queue: Any = torch.multiprocessing.get_context("spawn").Queue(maxsize=IN_FLIGHT)
    scope.callback(queue.join_thread)
    scope.callback(queue.close)

    def receive() -> Message:
        return from_leaves(tuple(tensor.numpy() for tensor in queue.get()))

    return Ends(partial(_sending_tensors, queue), receive, _nothing)


@contextmanager
def _sending_tensors(queue: Any) -> Generator[Send]:  # noqa: ANN401 - its type depends on the context
    torch.set_num_threads(1)  # as in a worker of DataLoader

    def send(message: Message) -> None:
        queue.put([torch.from_numpy(leaf) for leaf in leaves(message)])

    try:
        yield send
    finally:
        queue.cancel_join_thread()


def _nothing() -> None:
    """Release a message: do nothing, since its tensors free their memory themselves."""


def _readings(work: readings.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return torch's DataLoader alone, under its profiler and Python's, and beside py-spy, if that is installed."""
    batches = work.batches // 10  # a profiler keeps several events of each
    numbers: Any = Numbers(32 * batches)
    loader = DataLoader(numbers, batch_size=32)
    texts: dict[str, list[str]] = {name: [] for name in ("torch.profiler", "cProfile", "py-spy")}

    def timed(repeats: int) -> Measurement:
        return Measurement(batches * repeats, passes(lambda: loader)(repeats).seconds)

    def profiled(repeats: int) -> Measurement:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            measured = timed(repeats)
        texts["torch.profiler"].append(profile.key_averages().table())
        return measured

    def traced_calls(repeats: int) -> Measurement:
        with cProfile.Profile() as profile:
            measured = timed(repeats)
        text = io.StringIO()
        pstats.Stats(profile, stream=text).print_stats()
        texts["cProfile"].append(text.getvalue())
        return measured

    alone = "torch, inline"
    made = [
        readings.contestant(alone, "rival", timed),
        readings.tool(f"{alone}, torch.profiler", profiled, alone, texts["torch.profiler"]),
        readings.tool(f"{alone}, cProfile", traced_calls, alone, texts["cProfile"]),
    ]
    program = Path(sys.executable).with_name("py-spy")
    if program.exists():
        folder = Path(scope.enter_context(tempfile.TemporaryDirectory()))
        sampled = partial(_sampled, program, folder / "stacks", timed, texts["py-spy"])
        made.append(readings.tool(f"{alone}, py-spy", sampled, alone, texts["py-spy"]))
    return tuple(made)


def _sampled(
    program: Path, output: Path, timed: Callable[[int], Measurement], texts: list[str], repeats: int
) -> Measurement:
    """Return a measurement beside py-spy, which samples this process 100 times a second, by default."""
    command = [str(program), "record", "--pid", str(os.getpid()), "--format", "raw", "--output", str(output)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*command, "--duration", "600"], **pipes) as sampler:
        assert sampler.stdout is not None
        if "Sampling" not in (line := sampler.stdout.readline()):
            sampler.kill()
            raise RuntimeError(f"py-spy has refused: {line}")
        measured = timed(repeats)
        sampler.send_signal(signal.SIGINT)  # it writes, and ends
        sampler.communicate()
    texts.append(output.read_text())
    return measured


CONTESTANTS: dict[str, Contestants] = {
    "tiny": _tiny,
    "tokens": _tokens,
    "tokens-as-int32": _tokens_as_int32,
    "stack": torch_stack.contestants,
    "transport": _transport,
    "memory": torch_processes.in_memory,
    "big-batches": torch_processes.big,
    "images": torch_processes.of_images,
    "audio": torch_media.of_audio,
    "video": torch_media.of_video,
    "start-stop": torch_processes.started,
    "busy-trainer": torch_processes.beside_busy,
    "variations": _variations,
    "readings": _readings,
    "import": _import,
}
