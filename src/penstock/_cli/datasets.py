"""The dataset that a command line names as MODULE:NAME."""

import importlib
import os
import sys
from typing import cast

import penstock
from penstock.errors import UsageError

METAVAR = "MODULE:NAME"


def named_dataset(text: str) -> penstock.Dataset[object]:
    """Return the dataset that MODULE:NAME refers to.

    Args:
        text: the module, which is searched in the current folder first, and in it a dataset, or a function without
            arguments that returns one.

    Raises:
        UsageError: there is no such module or name, or it is no dataset.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"the dataset must be MODULE:NAME, such as data:train; got {text!r}")
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise  # the module is there, and imports one that isn't
        raise UsageError(f"there is no module {module_name!r} in {os.getcwd()!r} or in the environment") from None
    if not hasattr(module, name):
        raise UsageError(f"module {module_name!r} has no {name!r}")
    found: object = getattr(module, name)
    if not isinstance(found, penstock.Dataset) and callable(found):
        found = found()
    if not isinstance(found, penstock.Dataset):
        raise UsageError(f"{text} must be a dataset, or a function that returns one; got {found!r}")
    return cast("penstock.Dataset[object]", found)
