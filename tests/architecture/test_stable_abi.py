"""The native module of newer Pythons calls only functions of the stable ABI, also where tests run on an older one.

The wheel of Python 3.12 serves all versions after it, so it is compiled without the functions that may change. The
module of 3.11 has them all: tests of that version alone would not notice a function that the others lack.
"""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
OLDEST = "0x030B0000"  # what the headers of 3.11 call stable is a part of what those of 3.12 do
NAME = re.compile(r"\bPy(?:[A-Z][A-Za-z]*)?_[A-Za-z]\w*(?= ?\()")


def names() -> Iterable[str]:
    """Return the names of CPython's functions and macros that the native module calls."""
    paths = [path for folder in ("bindings", "core", "include") for path in (NATIVE / folder).glob("**/*.?pp")]
    return sorted({name for path in paths for name in NAME.findall(path.read_text())})


def refusal(called: Iterable[str], folder: Path) -> str:
    """Return a compiler's errors, if any, for a program that names what is called; skip where there is none."""
    compiler = shutil.which("cc")
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(headers) / "Python.h").exists():
        pytest.skip("no C compiler, or no C headers of Python")
    uses = "".join(f"#ifndef {name}\n    (void *)&{name},\n#endif\n" for name in called)
    source = folder / "names.c"
    source.write_text(f"#define Py_LIMITED_API {OLDEST}\n#include <Python.h>\nvoid *names[] = {{\n{uses}}};\n")
    command = [compiler, "-fsyntax-only", "-isystem", headers, str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_the_native_module_calls_the_stable_abi(tmp_path: Path) -> None:
    """Each function that it calls is declared for a module with the stable ABI."""
    called = list(names())
    assert len(called) > 40
    assert not refusal(called, tmp_path)


def test_a_function_that_may_change_is_found(tmp_path: Path) -> None:
    """A function that is not in the stable ABI is refused by name."""
    assert "PyObject_CallMethodNoArgs" in refusal(["PyObject_CallMethodNoArgs"], tmp_path)
