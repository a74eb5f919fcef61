"""What a process that wasn't forked from the program needs, to be like it: paths, environment, the main module.

It is what `multiprocessing` hands to its processes, and the environment variables. Not carried are the umask, limits
of resources, priorities and the cores that the program is bound to; these are as they were when the server started.
"""

import multiprocessing
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from multiprocessing import process, spawn
from typing import cast

from penstock._frozen import frozen
from penstock.errors import UsageError


@frozen
class Preparation:
    """What makes a process like the program.

    Attributes:
        given: what `multiprocessing.spawn.prepare` takes, without the main module.
        main: what it takes of the main module.
        environment: the variables.
        modules: what the process will import.
    """

    given: dict[str, object]
    main: dict[str, object]
    environment: dict[str, str]
    modules: tuple[str, ...]


def preparation(
    name: str, variables: Mapping[str, str], modules: tuple[str, ...], *, imports_main: bool
) -> Preparation:
    """Return what makes a process like this one is now.

    Args:
        name: the process's.
        variables: what its environment has besides.
        modules: what it will import.
        imports_main: whether it imports the main module.

    Raises:
        UsageError: this is a process of ours, which imports the main module.
    """
    current = process.current_process()
    if getattr(current, "_inheriting", False):
        raise UsageError(
            "this script starts processes while a process imports it, and so without end; move the code that uses "
            "them under `if __name__ == '__main__':`"
        )
    original: str | None = getattr(process, "ORIGINAL_DIR", None)
    given: dict[str, object] = {
        "name": name,
        "authkey": bytes(current.authkey),
        "sys_path": current_path(),
        "sys_argv": sys.argv,
        "orig_dir": original,
        "dir": os.getcwd(),
    }
    if (method := cast("str | None", multiprocessing.get_start_method(allow_none=True))) is not None:
        given["start_method"] = method  # to ask otherwise would fix it
    return Preparation(given, _main(original) if imports_main else {}, {**variables, **os.environ}, modules)


def current_path() -> list[str]:
    """Return where this process finds modules, for one that may be in another folder."""
    return [entry or getattr(process, "ORIGINAL_DIR", None) or "" for entry in sys.path]


def _main(original: str | None) -> dict[str, object]:
    main = sys.modules.get("__main__")
    name: str | None = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path: str | None = getattr(main, "__file__", None)
    if path is None:
        return {}
    found = os.path.normpath(os.path.join(original or "", path))
    # What Python reads from a pipe has the name "<stdin>", and can be read no second time.
    return {"init_main_from_path": found} if os.path.exists(found) else {}


def adopt(prepared: Preparation, *, with_main: bool) -> None:
    """Make this process like the program was; the main module is imported as `__mp_main__`."""
    for name in os.environ.keys() - prepared.environment.keys():
        del os.environ[name]
    os.environ.update(prepared.environment)
    spawn.prepare({**prepared.given, **(prepared.main if with_main else {})})


@contextmanager
def inheriting() -> Generator[None]:
    """Import what the program has, which must not start processes meanwhile; `multiprocessing` looks at it too."""
    current = vars(process.current_process())
    current["_inheriting"] = True
    try:
        yield
    finally:
        del current["_inheriting"]
