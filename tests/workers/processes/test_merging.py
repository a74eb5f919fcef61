"""Results that processes pass to each other and to the consumer: merges, steps above a batch, elements in order."""

import os
import threading
import warnings
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same
from tests.constants import SetConstant
from tests.dataset.functions import same
from tests.equivalence.definition import digest, digests
from tests.equivalence.kinds import is_dict, is_list_or_tuple, is_numpy
from tests.workers.processes import functions
from tests.workers.processes.shared_memory import mapped_regions, open_regions, shared_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def processes(dataset: ps.Dataset, num_workers: int = 2, **options: Any) -> ps.Loader:
    """Return a loader with worker processes."""
    return ps.Loader(dataset, num_workers=num_workers, workers="processes", **options)


def test_processes_compute_rows_merges_and_steps_above() -> None:
    """Several processes compute the rows of a batch; one of them merges them and runs the steps above."""
    dataset = ps.range(128).map(functions.process_of).batch(16, merge=functions.joined).map(functions.marked)
    with processes(dataset) as loader:
        batches = list(loader)
    assert [number for batch in batches for number in batch["numbers"]] == [*range(128)]
    workers = {worker for batch in batches for worker in batch["rows_by"]}
    assert len(workers) == 2
    assert any(len(batch["rows_by"]) == 2 for batch in batches)
    assert {batch["merged_by"] for batch in batches} | {batch["marked_by"] for batch in batches} <= workers
    assert os.getpid() not in workers


def test_elements_in_order_arrive_as_they_were() -> None:
    """Their types, dtypes, byte orders, shapes and keys, although the arrays of several travel as one."""
    with processes(ps.range(1), 1) as owner:
        for kind in functions.ELEMENTS:
            dataset = ps.range(60).map(partial(functions.element_of, kind)).window_shuffle(5)
            for each in (dataset, dataset.map(functions.written_to)):
                assert digests(ps.Loader(each, workers=owner)) == digests(each), kind


@pytest.mark.parametrize("kind", functions.DOCUMENTS)
def test_joined_documents_are_packed_as_single_ones(kind: str) -> None:
    """Sequences are those of the definition, also where a predicate writes to documents, and with leaves of meta=."""
    documents = ps.range(400).map(partial(functions.document_of, kind))
    with processes(ps.range(1)) as owner:
        for each in (documents, documents.filter(functions.triples)):
            dataset = each.pack(16, meta=("id", "tags") if kind == "dicts" else ())
            assert digests(ps.Loader(dataset, workers=owner)) == digests(dataset)


def test_large_elements_arrive_as_functions_returned_them() -> None:
    """Wherever their arrays were made, what else was made before, and also if the function keeps them."""
    dataset = ps.range(8 * len(functions.LARGE_ELEMENTS)).map(functions.large_element)
    expected = [described(element) for element in ps.Loader(dataset)]
    with processes(dataset) as loader:
        for _ in range(2):
            for number, found in enumerate(loader):
                assert described(found) == expected[number], list(functions.LARGE_ELEMENTS)[number // 8]
                for leaf in leaves_of(found):
                    if leaf.flags.writeable:
                        leaf += 1  # no other element changes


def test_few_large_elements_are_in_memory_at_a_time() -> None:
    """Those ahead, one for each worker, and the one in use share memory, and there is no copy of them there."""
    with processes(ps.range(10).map(functions.huge), prefetch=2) as loader:
        assert 2.5 < max(shared_bytes() for _ in loader) / (1 << 24) < 3.5


def test_large_elements_arrive_after_one_that_failed() -> None:
    """The memory in which a function made an array before it raised is used for further ones."""
    with processes(ps.range(50).map(functions.fails_at_large), 1) as loader:
        batches = iter(loader)
        found = [next(batches)[-1] for _ in range(functions.DEADLY)]
        with pytest.raises(ValueError, match="not 300000 times"):
            next(batches)
        loader.seek(functions.DEADLY + 1)
        assert [*found, *(element[-1] for element in loader)] == [n for n in range(50) if n != functions.DEADLY]


@pytest.mark.parametrize(("rows", "num_workers"), [("indexed", 1), ("indexed", 3), ("in order", 3), ("twice", 1)])
def test_batches_arrive_as_functions_returned_them(rows: str, num_workers: int) -> None:
    """Their types, dtypes, shapes, orders of axes and keys, and what may be written to, whatever the one before was."""
    below = ps.range(450) if rows == "indexed" else ps.range(450).filter(functions.is_any)
    dataset = below.batch(4, remainder="keep").map(functions.batch_of_a_kind)
    if rows == "twice":  # batches of all kinds, in an order of their own, go to processes, and come from them
        dataset = dataset.window_shuffle(9).map(same)
    inline = ps.Loader(dataset)
    with processes(dataset, num_workers) as loader:
        for _ in range(3):
            assert [described(batch) for batch in loader] == [described(batch) for batch in inline]


def test_batches_of_dtypes_from_pickles_are_written_in_place() -> None:
    """Those of a known layout are, which worker processes get as a pickle; a batch in place has no gaps."""
    dataset = ps.read({"x": np.ones((400, 8), np.float32), "y": np.ones((400, 8), int)}).batch(4)
    with processes(dataset.map(functions.every_second)) as loader:
        assert all(array.flags.c_contiguous for batch in loader for array in batch.values())


@pytest.mark.parametrize("copy", [False, True])
def test_batches_of_threads_are_as_functions_returned_them(*, copy: bool) -> None:
    """Also where small arrays are copied out of the memory of other batches, so that they don't keep it."""
    dataset = ps.range(450).batch(4, remainder="keep").map(functions.batch_of_a_kind)
    inline = [described(batch) for batch in ps.Loader(dataset)]
    with ps.Loader(dataset, num_workers=2, workers="threads", copy=copy) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [described(batch) for batch in batches] == inline
            bases = [leaf.base for batch in batches for leaf in leaves_of(batch) if leaf.base is not None]
            assert all(len(memoryview(base)) <= 200 for base in bases)


@pytest.mark.parametrize("size", [1, pytest.param(7, marks=pytest.mark.long), 60])  # less and more than a part
def test_functions_keep_batches_that_a_block_has_read(size: int) -> None:
    """A block reads its batches in parts of a megabyte, each into memory of its own."""
    rows = np.arange(600, dtype=np.uint16)[:, np.newaxis] + np.zeros(10_000, np.uint16)
    dataset = ps.read(rows).batch(size, remainder="keep").map(functions.kept_and_halved)
    with processes(dataset) as loader:
        for number, found in enumerate(loader):
            assert np.array_equal(found, rows[number * size :][:size] / 2)


def described(batch: Any) -> Any:
    """Return the digest of a batch, and what it doesn't show of the arrays."""
    leaves = leaves_of(batch)
    arrays = [(leaf.flags.writeable, leaf.flags.fnc, leaf.dtype.names, leaf.dtype.metadata) for leaf in leaves]
    return digest(batch), arrays, len(set(map(id, leaves))), [*map(type, batch)] if is_dict(batch) else []


def leaves_of(batch: Any) -> list[Any]:
    """Return the arrays in a batch or an element."""
    leaves: list[Any] = list(batch.values()) if is_dict(batch) else list(batch) if is_list_or_tuple(batch) else [batch]
    return [leaf for leaf in leaves if is_numpy(leaf)]


@pytest.mark.parametrize("merge", [None, functions.joined], ids=["stacked", "merged"])
def test_substituted_elements_are_computed_by_processes(merge: Any) -> None:
    """`on_error` works in the processes; the loader counts its events as without workers."""
    dataset = ps.range(200).map(functions.fails_at_multiples_of_ten, on_error=ps.Substitute()).batch(32, merge=merge)
    numbers, workers = ("number", "row_process") if merge is None else ("numbers", "rows_by")
    with ps.Loader(dataset) as inline, processes(dataset) as loader:
        expected, found = list(inline), list(loader)
        assert [digest(batch[numbers]) for batch in found] == [digest(batch[numbers]) for batch in expected]
        assert sorted(map(repr, loader.replaced())) == sorted(map(repr, inline.replaced()))
        assert loader.stats()["substituted"] == 20
    assert os.getpid() not in {int(worker) for batch in found for worker in batch[workers]}


def test_a_budget_is_counted_for_all_processes() -> None:
    """The limit of replaced elements holds over all processes; after it, the error is raised."""
    budget = ps.Substitute(budget=5)
    dataset = ps.range(200).map(functions.fails_at_multiples_of_ten, on_error=budget).batch(10)
    with processes(dataset) as loader:
        batches = iter(loader)
        assert [next(batches)["number"][1] for _ in range(5)] == [1, 11, 21, 31, 41]
        with pytest.raises(ValueError, match="no record 50"):
            next(batches)


PREFETCH, SIZE = 2, 80
BATCH_BYTES = SIZE * 100_000  # too much for a job to have several


def test_memory_of_merges_does_not_grow_with_workers() -> None:
    """Besides `prefetch` + 1 batches, there is memory for the rows of at most `prefetch` batches in the merge."""
    dataset = ps.range(12 * SIZE).map(functions.large_row).batch(SIZE, merge=np.stack)
    most = 0
    with processes(dataset, 3, prefetch=PREFETCH) as loader:
        for batch in loader:
            assert batch.nbytes == BATCH_BYTES
            most = max(most, shared_bytes())
    assert 3 * BATCH_BYTES < most < (2 * PREFETCH + 1) * BATCH_BYTES * 1.1


def test_texts_hold_no_array_back_from_its_row() -> None:
    """Arrays are written straight into their batch, also beside texts: nothing is in memory twice."""
    dataset = ps.range(12 * SIZE).map(functions.named_large_row).batch(SIZE)
    most = 0
    with processes(dataset, prefetch=PREFETCH) as loader:
        for number, batch in enumerate(loader):
            rows = range(SIZE * number, SIZE * (number + 1))
            assert batch["name"] == [f"record {row}" for row in rows]
            assert batch["image"][:, 0].tolist() == [row % 251 for row in rows]
            most = max(most, shared_bytes()) if number >= 2 * PREFETCH else 0
    assert 0 < most < (PREFETCH + 1) * BATCH_BYTES * 1.1


@pytest.mark.parametrize("above", [None, same, functions.lists_of_texts])
def test_texts_arrive_as_they_were(above: Callable[[Any], Any] | None) -> None:
    """Texts and bytes of all kinds, in lists of several containers; a list that a batch has twice stays one."""
    batches = ps.range(16 * 24).map(functions.texts).batch(16)
    dataset = batches if above is None else batches.map(above)
    with processes(dataset) as loader:
        for _ in range(2):  # the layout of rows is known from the first batches on
            for number, found in enumerate(loader):
                expected = dataset[number]
                assert_same(found, expected)
                assert _twice(found) == _twice(expected)


def _twice(batch: Any) -> bool:
    """Return whether a batch has one list twice."""
    if isinstance(batch, dict) and "inside" in batch:
        return batch["words"] is batch["inside"][0]
    return isinstance(batch, dict) and "other" in batch and batch["one"] is batch["other"]


def test_a_text_of_several_rows_is_few_objects() -> None:
    """One for each block, as in the process that returned it: a few names of labels take no memory in each row."""
    with processes(ps.range(8 * 256).map(functions.labelled).batch(256), 1) as loader:
        for _ in range(2):
            for batch in loader:
                assert batch["label"] == [f"label {number % 3}" for number in batch["number"]]
                assert len(set(map(id, batch["label"]))) < 32


def test_jobs_of_texts_are_bounded_by_their_bytes() -> None:
    """Workers compute about as many bytes of texts ahead as of arrays, however few bytes the rows have beside them."""
    ahead: list[int] = []
    with processes(ps.range(4 * 240).map(functions.long_text).batch(4)) as loader:
        list(loader)  # the bytes are known
        for number, batch in enumerate(loader):
            assert batch["number"][0] == 4 * number
            ahead.append(shared_bytes())
    assert max(ahead) < 32_000_000


def test_batches_that_do_not_fit_get_more_room(set_constant: SetConstant) -> None:
    """Elements that are larger than the memory planned for them are delivered, and later ones get more memory."""
    set_constant("_ROOM_BYTES", 4096)
    rows = ps.range(40).map(functions.large_row)
    for dataset in (rows, rows.filter(np.any).batch(4).map(functions.halved)):
        expected = digests(dataset)
        with processes(dataset) as loader:
            for _ in range(2):
                assert digests(loader) == expected


def test_memory_that_was_too_small_is_larger_for_later_batches(set_constant: SetConstant) -> None:
    """Processes compute all batches of three epochs, the first ones again with more memory, and the consumer none."""
    set_constant("_ROOM_BYTES", 4096)
    with processes(ps.range(160).map(functions.large_row_and_process).batch(4, merge=list)) as loader:
        found = [rows[-1]["process"] for _ in range(3) for rows in loader]
    assert len(found) == 120
    assert os.getpid() not in found


def test_memory_of_batches_that_were_kept_is_given_back() -> None:
    """An epoch whose batches are all kept takes memory for each; in the next epoch all processes return it."""
    dataset = ps.range(800).map(functions.large_row).batch(40)
    with processes(dataset, 1) as loader:
        with warnings.catch_warnings(action="ignore"):
            kept = list(loader)
        assert shared_bytes() > 70_000_000
        assert mapped_regions() > 15
        kept.clear()
        assert sum(len(batch) for batch in loader) == 800
        assert shared_bytes() < 30_000_000
        assert mapped_regions() < 15
        assert open_regions() < 15


def test_processes_share_the_source() -> None:
    """Arrays of a source are in memory once for all processes, which read them in place."""
    size = 1 << 26
    dataset = ps.read({"x": np.ones((1 << 5, size >> 5), np.uint8)}).map(functions.private_bytes).batch(4)
    with processes(dataset) as loader:
        assert max(int(batch.max()) for batch in loader) < size // 2
        assert size < shared_bytes() < 1.5 * size


def test_elements_keep_no_memory_of_the_loader() -> None:
    """An element that a window holds doesn't keep the memory of the others computed with it."""
    dataset = ps.range(1000).map(functions.large_row).filter(np.any).window_shuffle(8)
    with processes(dataset) as loader:
        kept = [element for number, element in enumerate(loader) if number % 100 == 0]
        assert shared_bytes() < 200 * 100_000
    assert all(element.shape == (100_000,) for element in kept)


BATCHES = 12


def late_rows() -> Generator[Any]:
    """Yield rows, each after the consumer usually began to wait for it."""
    for number in range(BATCHES):
        threading.Event().wait(0.02)
        yield np.full(1 << 18, number, np.int32)


def sums(rows: list[Any]) -> Any:
    """Merge rows into memory of the batch's own."""
    return np.stack(rows) * 2


@pytest.mark.parametrize("prefetch", [1, pytest.param(2, marks=pytest.mark.long)])  # 1 has the least memory
def test_a_late_batch_gets_memory_while_all_others_are_kept(prefetch: int) -> None:
    """The consumer keeps the memory of every merged batch, so the next job leases more."""
    dataset = ps.stream(late_rows).batch(1, merge=sums)
    with processes(dataset, prefetch=prefetch) as loader, pytest.warns(UserWarning, match="batches are kept"):
        kept = list(loader)
    assert [int(batch[0, 0]) for batch in kept] == [2 * number for number in range(BATCHES)]
