"""Functions compute with the settings of the program's thread, wherever they run."""

from decimal import localcontext
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.loader.sent_functions import third
from tests.places import in_places


@pytest.mark.skipif(
    np.__version__.startswith("1."), reason="before NumPy 2, each thread has its own treatment of errors"
)
@in_places("inline", "threads", "processes", "isolated")
def test_decimal_and_numpy_compute_as_in_the_program(place: dict[str, Any]) -> None:
    """The precision of `decimal` and NumPy's treatment of errors are those of the thread that iterates."""
    with (
        localcontext(prec=5),
        np.errstate(divide="raise"),
        ps.Loader(ps.range(1, 9).map(third).batch(8), **place) as loader,
    ):
        assert next(iter(loader)).tolist() == [1.3333] * 8
