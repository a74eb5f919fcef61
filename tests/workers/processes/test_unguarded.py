"""Scripts without `if __name__ == "__main__":` load with worker processes, and run once.

`test_processes.py` has a program that Python itself reads from a pipe, `torch/programs/test_globals.py` one of torch's.
"""

import os
from pathlib import Path

import pytest

from tests.programs.forked import outcome, script_outcome

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the fork server is Linux's"),
    pytest.mark.usefixtures("forked_programs"),
]

DEFINITIONS = """
import collections, os, signal, sys
import numpy as np
import penstock as ps

Point = collections.namedtuple("Point", "x y")

class CorruptError(Exception):
    pass

class Box:
    def __init__(self, value):
        self.value = value

OFFSET = 100

def decode(number):
    if number == 77:
        raise CorruptError("number 77")
    return np.full(3, number + OFFSET)

def dies_once(number):
    if number == 5 and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number

print("top")
"""
UNGUARDED = """
import enum, functools

class Color(enum.Enum):
    RED = 1

class Pixels(np.ndarray):
    pass

@functools.lru_cache(maxsize=3)
def triple(number):
    return 3 * number if number < 2 else 3 + triple(number - 1)

def colored(number):
    return {'color': Color.RED, 'pixels': np.full(2, number).view(Pixels)}

def shown(dataset, **place):
    with ps.Loader(dataset, **place or {'num_workers': 2, 'workers': 'processes'}) as loader:
        batches = list(loader)
        return batches, len(loader.deaths())

batches, _ = shown(ps.range(8).map(decode).batch(4).map(Box))
print([type(batch) is Box and batch.value[:, 0].tolist() for batch in batches])
try:
    shown(ps.range(70, 80).map(decode).batch(5))
except CorruptError as error:
    print(error)
batches, deaths = shown(ps.range(8).map(dies_once).batch(4))
print([batch.tolist() for batch in batches], deaths)
for place in {}, {'isolated': True}:
    (batch,), _ = shown(ps.range(4).map(triple).batch(4), **place)
    print(batch.tolist())
    (each,), _ = shown(ps.range(1).map(colored), **place)
    print(each['color'] is Color.RED, type(each['pixels']) is Pixels)
"""
UNGUARDED_PRINTS = """top
[[100, 101, 102, 103], [104, 105, 106, 107]]
number 77
[[0, 1, 2, 3], [4, 5, 6, 7]] 1
[0, 3, 6, 9]
True True
[0, 3, 6, 9]
True True"""


def run(script: Path | None, text: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program from a file, or as from a pipe; return its exit code, output and errors."""
    if script is None:
        ended = outcome(f"""
            import sys
            __file__ = "<stdin>"
            sys.argv, sys.path[0] = ["-", *{arguments!r}], ""
            exec(compile({text!r}, __file__, "exec"))
        """)
    else:
        script.write_text(text)
        ended = script_outcome(script, *arguments)
    return ended.returncode, ended.stdout.strip(), ended.stderr.strip()


@pytest.mark.parametrize("by_pipe", [False, True])
def test_an_unguarded_script_runs_once(tmp_path: Path, *, by_pipe: bool) -> None:
    """Its functions, classes and exceptions are the same in the program, and no process runs its top level again."""
    script = None if by_pipe else tmp_path / "script.py"
    code, printed, complaint = run(script, DEFINITIONS + UNGUARDED, str(tmp_path / "died"))
    assert (code, printed) == (0, UNGUARDED_PRINTS)
    assert not [line for line in complaint.splitlines() if "another process replaces" not in line]


def test_where_the_script_would_run_again_one_error_says_so_first(tmp_path: Path) -> None:
    """The error is raised before any process is started, and its remedy is a guard."""
    body = """
for limits in ps.Limits(start_method='spawn'), ps.Limits():
    try:
        list(ps.Loader(ps.range(8).map(decode).batch(4), num_workers=1, workers='processes', limits=limits))
    except ps.errors.UsageError as error:
        print(error)
    sys.modules['cloudpickle'] = None
"""
    code, printed, complaint = run(tmp_path / "script.py", DEFINITIONS + body)
    assert (code, complaint) == (0, "")
    top, *errors = printed.splitlines()
    assert top == "top"
    assert len(errors) == 2
    for error in errors:
        assert 'under `if __name__ == "__main__":`' in error or "move the code that uses them under it" in error


def test_a_script_from_a_pipe_spawns_processes() -> None:
    """No process can import it, so none starts others, with a guard or without one."""
    body = (
        "from penstock.pipeline import PipelineBuilder, run_in_subprocess\n"
        "limits = ps.Limits(start_method='spawn')\n"
        "with ps.Loader(ps.range(4).map(decode).batch(4), isolated=True, limits=limits) as loader:\n"
        "    print(list(loader)[0][:, 0].tolist())\n"
        "if __name__ == '__main__':\n"
        "    config = PipelineBuilder().add_source([3]).pipe(range).disaggregate().add_sink().get_config()\n"
        "    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:\n"
        "        print(list(pipeline))"
    )
    assert run(None, DEFINITIONS + body) == (0, "top\n[100, 101, 102, 103]\n[0, 1, 2]", "")


def test_a_guarded_script_is_imported_by_its_workers(tmp_path: Path) -> None:
    """So its functions are pickled by name without cloudpickle, and its exceptions and classes are the program's.

    With cloudpickle workers get a class with the dataset, by value, and import another one: rows have the dataset's.
    """
    body = """
from penstock._processes import pickled_for_processes

def refuse(worker):
    raise CorruptError('preparation')

def loaded(dataset, **limits):
    with ps.Loader(dataset, num_workers=1, workers='processes', limits=ps.Limits(**limits)) as loader:
        return list(loader)

if __name__ == '__main__':
    batches = loaded(ps.range(64).map(lambda number: Point(decode(number), number)).batch(4))
    print(all(type(batch) is Point for batch in batches), b'cloudpickle' in pickled_for_processes(Point))
    sys.modules['cloudpickle'] = None
    print(loaded(ps.range(4).map(decode).batch(4))[0][:, 0].tolist())
    for dataset, limits in (ps.range(77, 80).map(decode).batch(1), {}), (ps.range(3), {'worker_init': refuse}):
        try:
            loaded(dataset, **limits)
        except CorruptError as error:
            print(error)
"""
    code, printed, complaint = run(tmp_path / "script.py", DEFINITIONS + body)
    assert (code, complaint) == (0, "")
    found = [line for line in printed.splitlines() if line != "top"]
    assert found == ["True True", "[100, 101, 102, 103]", "number 77", "preparation"]


def test_a_module_that_starts_processes_while_it_is_imported_gets_an_error(tmp_path: Path) -> None:
    """Its functions are sent by name, so each process would import it, and start others."""
    module = """
for kind in {'num_workers': 1, 'workers': 'processes'}, {'isolated': True}:
    try:
        with ps.Loader(ps.range(8).map(decode).batch(4), **kind) as loader:
            list(loader)
    except ps.errors.UsageError as error:
        print(error)
"""
    (tmp_path / "training.py").write_text(DEFINITIONS + module)
    code, printed, complaint = run(tmp_path / "script.py", "import training")
    assert (code, complaint) == (0, "")
    top, *errors = printed.splitlines()
    assert top == "top"
    assert len(errors) == 2
    assert all("the module training starts processes while it is imported" in error for error in errors)
