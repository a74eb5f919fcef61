"""The data that make a forked process like the program, of which it is no fork, and the modules it will import.

The paths, the environment variables and the main module are those that `multiprocessing` sends to its processes. The
umask, resource limits, priorities and the program's affinity to cores are not sent; they are as they were when the
server started.
"""

import multiprocessing
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import process, spawn
from typing import cast

from penstock._frozen import frozen
from penstock._module_search import current_path
from penstock._processes._main_module import main_path
from penstock.errors import UsageError


@frozen
class Preparation:
    """The data that make a process like the program.

    Attributes:
        given: the argument of `multiprocessing.spawn.prepare`, without the main module.
        main: the part of that argument that concerns the main module.
        environment: the environment variables.
        modules: that the process will import.
    """

    given: dict[str, object]
    main: dict[str, object]
    environment: dict[str, str]
    modules: tuple[str, ...]


def preparation(
    name: str, variables: Mapping[str, str], modules: tuple[str, ...], *, imports_main: bool
) -> Preparation:
    """Return the data that make a process like this one is now.

    Args:
        name: of the process.
        variables: defaults for variables that the environment lacks.
        modules: that the process will import.
        imports_main: whether it imports the main module.

    Raises:
        UsageError: this is a child process that is importing the main module.
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
    }
    with suppress(FileNotFoundError):  # it has been deleted: the process begins where the fork server is
        given["dir"] = os.getcwd()
    if (method := cast("str | None", multiprocessing.get_start_method(allow_none=True))) is not None:
        given["start_method"] = method  # to ask otherwise would fix it
    return Preparation(given, _main() if imports_main else {}, {**variables, **os.environ}, modules)


def _main() -> dict[str, object]:
    name: str | None = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = main_path()
    return {} if path is None else {"init_main_from_path": path}


def adopt(prepared: Preparation, *, with_main: bool) -> None:
    """Make this process like the program was; the main module is imported as `__mp_main__`."""
    for name in os.environ.keys() - prepared.environment.keys():
        del os.environ[name]
    os.environ.update(prepared.environment)
    given = {**prepared.given, **(prepared.main if with_main else {})}
    with suppress(OSError):  # it has been deleted, or a folder above it is closed to its user
        if given.get("dir") == os.getcwd():
            del given["dir"]  # its user may not be allowed to enter it again
    spawn.prepare(given)


@contextmanager
def inheriting() -> Generator[None]:
    """Mark this process as one that imports the program's modules, so that these can't start processes.

    `multiprocessing` respects the mark, too.
    """
    current = vars(process.current_process())
    current["_inheriting"] = True
    try:
        yield
    finally:
        del current["_inheriting"]
