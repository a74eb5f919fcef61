"""The 1,797 handwritten digits of the demo, which scikit-learn contains, written as PNG files once.

Their 17 levels of grey (0 to 16) become brightness 0 to 240 in steps of 15, without loss. They are the test part of
"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI, 1998).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._cli.demo.pictures import encode_png
from penstock._optional import need
from penstock.errors import InternalError

BRIGHTNESS: Final = 15
NUM_DIGITS: Final = 1797


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits as levels from 0 to 16, uint8 of shape (1797, 8, 8), and their labels, int64 from 0 to 9.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    datasets: Any = need("sklearn.datasets", "scikit-learn", extra="demo")
    bunch = datasets.load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int64)


def write_digits(folder: Path, progress: Callable[[float], None]) -> int:
    """Write each digit to `folder/LABEL/NUMBER.png`, unless the file exists.

    Args:
        folder: the target; it is made if it does not exist. A file takes its name only when it is complete.
        progress: called with the share that is done, between 0 and 1.

    Returns:
        The number of digits.
    """
    if len(list(folder.glob("?/????.png"))) == NUM_DIGITS:
        return NUM_DIGITS
    images, labels = load_digits()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    for number, (levels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(encode_png(levels * np.uint8(BRIGHTNESS)))
            unfinished.replace(path)
        progress((number + 1) / len(images))
    return len(images)


def find_script() -> Path:
    """Return the path of `digits.py`, the short script that the demo runs.

    A wheel carries a copy beside this file; in a checkout it is the one in `examples/`.

    Raises:
        InternalError: the script is in neither place.
    """
    installed = Path(__file__).parent / "examples" / "digits.py"
    checkout = Path(__file__).parents[4] / "examples" / "digits.py"
    for path in (installed, checkout):
        if path.is_file():
            return path
    raise InternalError(f"examples/digits.py must come with Penstock; it is neither at {installed} nor at {checkout}")
