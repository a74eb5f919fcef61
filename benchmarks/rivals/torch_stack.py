"""torch's ways to make a batch of arrays: `torch.stack`, and images normalised one by one in the processor's cache."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from benchmarks.macro import stack
from benchmarks.scenario import Contestant

THREADS = (1, 2)  # a worker process of a DataLoader has 1; without workers torch takes all cores


def contestants(work: stack.Work, _: ExitStack) -> tuple[Contestant, ...]:
    """Return the contestants of `stack`: into existing and new tensors, by one thread and by two."""
    made: list[Contestant] = []
    for num_threads in THREADS:
        threads = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
        for claim, rows in work.rows.items():
            tensors, out = [torch.from_numpy(array) for array in rows.arrays], torch.from_numpy(rows.out)
            into: Callable[[], Any] = partial(torch.stack, tensors, out=out)
            fresh: Callable[[], Any] = partial(torch.stack, tensors)
            for name, make in (("torch.stack out=", into), ("torch.stack fresh", fresh)):
                timed = partial(_on_threads, num_threads, make)
                made.append(stack.contestant(work, claim, f"{name}, {threads}", "rival", timed))
        by_image = partial(_on_threads, num_threads, partial(_normalize, work))
        made.append(stack.contestant(work, "images", f"torch out=, image by image, {threads}", "rival", by_image))
    return tuple(made)


def _normalize(work: stack.Work) -> Any:  # noqa: ANN401 - a tensor of a package that may be absent
    """Fill the planes with the fewest operations: a converting copy, and one product and one sum in place."""
    scale, shift = (torch.from_numpy(numbers)[:, None, None] for numbers in (work.scale, work.shift))
    images, planes = torch.from_numpy(work.images), torch.from_numpy(work.planes)
    for image, out in zip(images, planes, strict=True):
        out.copy_(image.permute(2, 0, 1)).mul_(scale).add_(shift)
    return planes


def _on_threads(num_threads: int, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - see above
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return make()
    finally:
        torch.set_num_threads(before)
