"""Kept memory: at `max_bytes` one end raises an error with a remedy, and no end waits for itself."""

import asyncio
import gc

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.transport import TensorPipeReader, TensorPipeWriter
from tests.transport.pipe.children import element_of, is_element, running


def test_memory_all_kept_by_the_reader_is_an_error_there() -> None:
    """At max_bytes the writer waits, and the waiting reader raises with a remedy; after that, both continue."""
    with TensorPipeReader() as reader:
        arena_bytes = 3 * element_of(0)["x"].nbytes + 20_000
        with running("fork", _send_with_limit, reader.address, 6, arena_bytes):
            kept = [reader.receive() for _ in range(3)]
            for _ in range(2):
                with pytest.raises(UsageError, match="copy=True"):
                    reader.receive()
            assert all(is_element(element, step) for step, element in enumerate(kept))
            kept.clear()
            assert [element["step"] for element in reader] == [3, 4, 5]


def test_memory_in_reference_cycles_is_collected_first() -> None:
    """A cycle that holds all memory is no error: it is collected."""
    with TensorPipeReader() as reader:
        gc.disable()
        try:
            with running("fork", _send_with_limit, reader.address, 20, 3 * element_of(0)["x"].nbytes + 20_000):
                for step in range(20):
                    element = reader.receive()
                    assert is_element(element, step)
                    element["self"] = element
                    del element
        finally:
            gc.enable()


def test_memory_all_kept_by_the_writer_is_an_error_there() -> None:
    """No other process could free it."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, max_bytes=1_000_000) as writer:
        kept = [writer.empty(np.zeros(50_000))]
        with pytest.raises(UsageError, match="Drop the elements of empty"):
            kept.extend(writer.empty(np.zeros(50_000)) for _ in range(5))
        kept.clear()
        writer.send(element_of(0))
        assert is_element(reader.receive(), 0)


def test_an_element_larger_than_max_bytes_is_refused() -> None:
    """With both sizes."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, max_bytes=100_000) as writer:
        with pytest.raises(UsageError, match=r"max_bytes.*100.?000"):
            writer.send(np.zeros(100_000))
        writer.send(np.zeros(10_000))
        assert reader.receive().shape == (10_000,)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_warning_about_kept_elements_names_the_caller(*, is_async: bool) -> None:
    """The warning shows the line that called `receive`, and appears once."""
    kept: list[object] = []
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:

        async def receive() -> None:
            kept.append(await reader.areceive() if is_async else reader.receive())

        def keep_elements() -> None:
            for step in range(8):
                writer.send(element_of(step))
                asyncio.run(receive())

        with pytest.warns(UserWarning, match="received elements are still referenced") as caught:
            keep_elements()
    assert [warning.filename for warning in caught] == [__file__]
    assert "copy=True" in str(caught[0].message)


def _send_with_limit(address: str, count: int, max_bytes: int) -> None:
    with TensorPipeWriter(address, max_bytes=max_bytes) as writer:
        for step in range(count):
            writer.send(element_of(step))
