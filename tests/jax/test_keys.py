"""`random_map(…, rng="jax")`: keys derived as seeds are, all 64 bits of them, wherever the function is called."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import MissingDependencyError
from tests.jax.functions import draw, sees

jax = pytest.importorskip("jax")


def words(number: int, key: Any) -> Any:
    """Return the words of the key."""
    del number
    assert jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key))


def halves(number: int, seed: int) -> Any:
    """Return the upper and lower half of a seed."""
    del number
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


@given(st.integers(0, 2**64 - 1), st.integers(1, 40))
def test_a_key_is_the_elements_seed(seed: int, total: int) -> None:
    """A step's keys hold the seeds that a step of its name would get, one by one and in blocks."""
    elements = ps.range(total, seed=seed).shuffle()
    keyed = elements.random_map(words, rng="jax", name="step")
    seeded = elements.random_map(halves, rng="seed", name="step")
    assert keyed[total - 1].tolist() == seeded[total - 1].tolist()
    loader, other = ps.Loader(keyed.batch(16)), ps.Loader(seeded.batch(16))
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in other]


def test_configuration_changes_nothing() -> None:
    """Another default algorithm, and 64-bit numbers, change neither keys nor draws."""
    dataset = ps.range(3, seed=1).random_map(draw, rng="jax")
    expected = [element["drawn"].tolist() for element in dataset]
    with jax.default_prng_impl("rbg"):
        assert [element["drawn"].tolist() for element in dataset] == expected


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_workers_draw_the_same(workers: Any) -> None:
    """Workers' batches are those of the definition; and processes compute on the host."""
    dataset = ps.range(12, seed=1).shuffle().random_map(draw, rng="jax").batch(4)
    with ps.Loader(dataset, num_workers=1, workers=workers) as loader:
        batches = list(loader)
    assert [batch["drawn"].tolist() for batch in batches] == [batch["drawn"].tolist() for batch in dataset]
    assert {where for batch in batches for where in batch["where"]} == {"cpu"}


def test_processes_see_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers use no accelerator, whichever the trainer's process lets JAX use."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    dataset = ps.range(2).map(sees)
    with ps.Loader(dataset, num_workers=1, workers="processes") as loader:
        assert list(loader) == ["cpu", "cpu"]
    with ps.Loader(dataset, isolated=True) as loader:
        assert list(loader) == ["cpu", "cpu"]


def test_a_missing_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAX, describing the step raises an error that names the extra."""

    def finds_nothing(name: str) -> None:
        del name

    monkeypatch.setattr("importlib.util.find_spec", finds_nothing)
    with pytest.raises(MissingDependencyError, match=r"penstock\[jax\]"):
        ps.range(2).random_map(draw, rng="jax")
