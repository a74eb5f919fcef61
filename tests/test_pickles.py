"""A pickle in parts holds the same value as one in a block, and the large arrays in it are not copied."""

import importlib
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock._pickles import dump, dumps, dumps_by_name, load, load_parts, pickler
from penstock._runtime._shared_values import in_parts, write
from penstock.errors import MessageError
from penstock.testing import assert_same
from tests.programs.forked import Ended, outcome

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text() | arrays.arrays(np.uint16, st.integers(0, 200)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.integers(1, 300))
def test_parts_hold_the_value(value: Any, least_bytes: int) -> None:
    """Whatever is large, the value is the same."""
    parts = in_parts(dump(value), least_bytes)
    assert_same([load_parts(parts, copied_bytes=1 << 40)], [value])
    assert all(before.stop <= after.start for before, after in pairwise(parts))


def test_large_arrays_are_not_copied() -> None:
    """A part is the memory of the array itself; loaded, it is a copy that may be written to, if that is requested."""
    large, small = np.arange(1000), np.arange(3)
    parts = in_parts(dump({"small": small, "large": large, "last": small.copy()}), 1000)
    assert [np.shares_memory(part.array, large) for part in parts] == [False, True, False]
    assert not any(np.shares_memory(part.array, small) for part in parts)
    copied: Any = load_parts(parts, copied_bytes=1 << 40)
    copied["large"][:] = 0
    assert large[1] == 1
    seen: Any = load_parts(parts, copied_bytes=0)
    assert np.shares_memory(seen["large"], large)


@pytest.mark.parametrize("name", ["uint8", "uint16", "float32", "bfloat16"])
def test_tensors_are_not_copied(name: str) -> None:
    """By either way to pickle; torch's own pickle contains a copy, and can't be read if the tensor is unsigned."""
    torch: Any = pytest.importorskip("torch")
    tensor = torch.arange(200).to(getattr(torch, name))
    for pickled in (dump([tensor]), dump([tensor], pickler().dumps)):
        (_, data) = pickled.pieces[1]
        assert np.frombuffer(data, np.uint8).ctypes.data == tensor.data_ptr()
        memory = np.zeros(pickled.nbytes, np.uint8)
        write(pickled, memory, 0)
        seen: Any = load(memory.data, copied_bytes=0)
        assert (seen[0].dtype, torch.equal(seen[0], tensor)) == (tensor.dtype, True)


def test_tensors_in_read_only_memory_are_copies() -> None:
    """As of a store that processes share: torch would write to it, and crash."""
    torch: Any = pytest.importorskip("torch")
    pickled = dump(torch.arange(200))
    memory = np.zeros(pickled.nbytes, np.uint8)
    write(pickled, memory, 0)
    seen: Any = load(memory.data.toreadonly(), copied_bytes=0)
    seen.zero_()
    assert torch.equal(load(memory.data, copied_bytes=0), torch.arange(200))


def test_lost_parts() -> None:
    """Parts at the end that are missing are an error."""
    parts = in_parts(dump({"large": np.arange(1000)}), 1000)
    with pytest.raises(MessageError, match="truncated"):
        load_parts(parts[:-1], copied_bytes=1 << 40)


@pytest.mark.parametrize("module", ["random", "numpy.random"])
def test_a_function_draws_from_the_global_generator_of_its_process(module: str) -> None:
    """A function that has `random` by its name brings no generator along, which all processes would draw from."""
    drawing: Any = importlib.import_module(module)
    draw = drawing.random
    sent = pickle.loads(pickler().dumps(lambda: draw()))
    for dumped in (dumps(draw), dumps_by_name(draw), bytes(pickler().dumps(draw))):
        assert pickle.loads(dumped).__self__ is draw.__self__
    before = (drawing.getstate if module == "random" else drawing.get_state)()
    drawn = sent()
    (drawing.setstate if module == "random" else drawing.set_state)(before)
    assert draw() == drawn
    own = type(draw.__self__)(3)
    copied = pickle.loads(pickler().dumps(lambda: own))()
    assert copied is not own
    assert copied.random() == own.random()


def test_modules_of_a_class_of_their_own_are_sent_by_name() -> None:
    """A function that uses torch, and a variable of its own that is named like such a module of torch, is sent."""
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("cloudpickle")
    classes = ["cat", "dog"]

    def used() -> list[Any]:
        return [torch.classes, torch.backends.cudnn, *classes]

    assert pickle.loads(pickler().dumps(used))() == used()


FORK = """
import os
import penstock as ps

class Scaled:
    by = 1

    def __init__(self, number):
        self.number = number * type(self).by

def scale(number):
    return Scaled(number)

def numbers():
    with ps.Loader(ps.range(1, 3).map(scale), num_workers=1, workers="processes") as loader:
        return [scaled.number for scaled in loader]

print(numbers())
if os.fork() == 0:
    print(numbers())
    Scaled.by = 10
    print(numbers())
else:
    os.wait()
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_fork_of_the_program_defines_its_classes_too() -> None:
    """A change of a class in the fork reaches the processes that the fork starts later."""
    pytest.importorskip("cloudpickle")
    assert outcome(FORK) == Ended(0, "[1, 2]\n[1, 2]\n[10, 20]\n", "")


BACK = """
import pickle, sys
from penstock._pickles import pickler

thing = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickler().dumps(thing) if sys.argv[1:] else str(thing.value).encode())
"""
SENT_PLAINLY = f"""
import pickle, subprocess, sys
import cloudpickle
from penstock._pickles import pickler

class Thing:
    value = 0

def run(data, *arguments):
    return subprocess.run([sys.executable, "-c", {BACK!r}, *arguments], input=data, stdout=-1, check=True).stdout

back = run(cloudpickle.dumps(Thing()), "back")
Thing.value = 5
assert type(pickle.loads(back)) is Thing
print(Thing.value)
for Thing.value in (7, 8):
    print(run(pickler().dumps(Thing())).decode())
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_class_that_cloudpickle_alone_has_sent_stays() -> None:
    """It comes back under a name that the program never gave it, and later changes are sent as before."""
    pytest.importorskip("cloudpickle")
    assert outcome(SENT_PLAINLY) == Ended(0, "5\n7\n8\n", "")
