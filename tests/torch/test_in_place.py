"""Taking the place of loaders that a framework has made of torch's class."""

from typing import Any

import pytest
import torch.utils.data

import penstock as ps
import penstock.torch
from penstock.errors import UsageError
from tests.torch.conformance.datasets import Counting, Numbers
from tests.torch.conformance.outcome import described

TorchLoader: Any = torch.utils.data.DataLoader
OurLoader: Any = penstock.torch.DataLoader
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": None},
    {"batch_sampler": [[1, 2], [3]]},
    {"dataset": Counting(20), "batch_size": 3},
)


def test_taking_the_place_of_torchs_loader() -> None:
    """A loader in place of torch's has its arguments, those for workers included, and gives what that gives."""
    for given in ARGUMENTS:
        theirs = TorchLoader(**{"dataset": Numbers(20), **given})
        ours = OurLoader.in_place_of(theirs)
        assert ours.__class__ is OurLoader
        assert (ours.batch_size, ours.drop_last) == (theirs.batch_size, theirs.drop_last)
        assert described(list(ours)) == described(list(theirs))
        assert OurLoader.in_place_of(ours) is ours
    theirs = TorchLoader(Numbers(20), 3, num_workers=1, prefetch_factor=4, persistent_workers=True, timeout=60)
    ours = OurLoader.in_place_of(theirs)
    named = ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "collate_fn")
    assert [getattr(ours, name) for name in named] == [getattr(theirs, name) for name in named]


def test_other_objects_are_refused() -> None:
    """The error names the loaders that it takes."""
    nothing: Any = []
    with pytest.raises(UsageError, match=r"in_place_of takes one of torch's loaders.*got a list"):
        OurLoader.in_place_of(nothing)


def test_preparing_our_loader_with_accelerate_warns() -> None:
    """Accelerate reads an attribute of its own from every loader before it makes a torch loader of it."""
    with pytest.warns(UserWarning, match=r"in_place_of\(loader\)"):
        assert not getattr(OurLoader(Numbers()), "_is_accelerate_prepared", False)
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        vars(OurLoader)["__getattr__"](OurLoader(Numbers()), "unknown")


def test_a_loader_of_our_datasets_explains_its_missing_samplers() -> None:
    """The attributes by which frameworks deal or skip batches are missing, with a reason; other names fail plainly."""
    loader: Any = penstock.torch.Loader(ps.range(4).batch(2))
    for name in ("dataset", "sampler", "batch_sampler"):
        assert not hasattr(loader, name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; .* resumes .* by load_state_dict"):
            getattr(loader, name)
    with pytest.raises(AttributeError, match=r"no attribute 'unknown'$"):
        _ = loader.unknown
