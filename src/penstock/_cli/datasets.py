"""The dataset, loader or function that a command line names as MODULE:NAME."""

import importlib
import os
import sys
from typing import Any, cast

import penstock
from penstock._signatures import check_takes
from penstock.errors import UsageError

_REMEDY = "Name a function without arguments, or one that has defaults for them"
METAVAR = "MODULE:NAME"
METAVAR_OR_PATH = "NAME"
NAME_HELP = "MODULE:NAME, such as data:train, with the current folder searched first; or a file or folder of records"


def named_dataset(text: str) -> penstock.Dataset[object]:
    """Return the dataset that MODULE:NAME refers to.

    Args:
        text: the module, which is searched in the current folder first, and in it a dataset, or a function without
            arguments that returns one.

    Raises:
        UsageError: there is no such module or name, or it is no dataset.
    """
    found = named_object(text)
    if not isinstance(found, penstock.Dataset) and callable(found):
        check_takes(found, (), text, _REMEDY)
        found = found()
    if not isinstance(found, penstock.Dataset):
        raise UsageError(f"{text} must be a dataset, or a function that returns one; got {found!r}")
    return cast("penstock.Dataset[object]", found)


def named(text: str) -> "penstock.Dataset[Any] | penstock.Loader[Any]":
    """Return the dataset or loader that MODULE:NAME refers to, or the dataset of the records at a path.

    Args:
        text: the module, and in it a dataset or a loader, or a function without arguments that returns one; or the path
            of a file or folder.

    Raises:
        UsageError: there is no such module or name, or it is neither; or the files have no known format.
    """
    if os.path.exists(text):
        return penstock.read(text)
    found: Any = named_object(text)
    if not _is_either(found) and callable(found):
        check_takes(found, (), text, _REMEDY)
        found = found()
    if not _is_either(found):
        raise UsageError(f"{text} must be a dataset or a loader, or a function that returns one; got {found!r}")
    either: penstock.Dataset[Any] | penstock.Loader[Any] = found
    return either


def _is_either(found: object) -> bool:
    return isinstance(found, penstock.Dataset | penstock.Loader)


def named_loader(text: str, shard: penstock.Shard | None) -> penstock.Loader[Any]:
    """Return the loader that MODULE:NAME refers to, or a new one of the dataset that it refers to.

    Args:
        text: the module, and in it a dataset or a loader, or a function without arguments that returns one.
        shard: the rank of a new loader; None for all rows.

    Raises:
        UsageError: there is no such module or name, or it is neither; or it is a loader, and a rank is given.
    """
    found = named(text)
    if isinstance(found, penstock.Dataset):
        return penstock.Loader(found, shard=shard)
    if shard is not None:
        raise UsageError(f"{text} is a loader, which has a rank of its own; name its dataset, or leave --rank out")
    return found


def named_object(text: str) -> object:
    """Return the object that MODULE:NAME refers to; NAME may have dots, as in `data:tokenizer.decode`.

    Raises:
        UsageError: there is no such module or name.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"MODULE:NAME is needed, such as data:train, or a path; got {text!r}, and no such path exists")
    if os.sep in module_name or module_name.endswith(".py"):
        module = os.path.basename(module_name).removesuffix(".py")
        raise UsageError(
            f"MODULE is a name that Python imports, not a path; got {module_name!r}. In the folder of the file, name "
            f"it {module}:{name}"
        )
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports one that isn't
        raise UsageError(f"there is no module {module_name!r} in {os.getcwd()!r} or in the environment") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found
