"""The environment of the rivals, in which `scripts/bench --rivals` runs.

A path file puts the packages of the benchmarks' own environment (Penstock, freshly built, and the same NumPy, torch and
datasets) before its own, so other versions that a rival installs with it aren't used. It adds them as a site's folder,
whose own path files are read, too: so it also finds a Penstock that is installed to be edited.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

# torch is the build for CPUs if pip finds one; --extra-index-url or --find-links in PIP_* variables can name it.
PACKAGES = (
    "torch==2.13.0",
    "grain==0.2.18",
    "torchdata==0.11.0",
    "accelerate==1.15.0",
    "spdl==0.8.0",
    "webdataset==1.0.2",
    "mosaicml-streaming==0.13.0",
    "litdata==0.2.76",
    "pylance==14.0.2",
    "jax==0.10.2",
    "py-spy==0.4.3",
    "simplejpeg==1.9.0",  # the decoder of all contestants
)


def python_of(folder: Path) -> Path:
    """Return the interpreter of the environment in `folder`."""
    return folder / "bin" / "python"


def set_up(folder: Path) -> tuple[str, ...]:
    """Make the environment, install each rival, and return the requirements that could not be installed.

    Args:
        folder: the environment's folder; an existing environment in it is replaced.
    """
    venv.create(folder, with_pip=True, clear=True)
    pins = folder / "constraints.txt"  # else a requirement of one rival would replace another one, as torch
    pins.write_text("\n".join(PACKAGES) + "\n")
    packages, own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)})), sysconfig.get_path("purelib")
    (packages / "penstock-benchmarks.pth").write_text(
        f"import site, sys; sys.path.insert(1, {own!r}); site.addsitedir({own!r})\n"
    )
    failed: list[str] = []
    for package in PACKAGES:
        print(f"installing {package}", flush=True)
        command = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--constraint", str(pins), package]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(package)
    return tuple(failed)


def run_inside(folder: Path, arguments: list[str]) -> None:
    """Continue with the same command in the rivals' environment; return only if this is it, or if there is none."""
    python = python_of(folder)
    if not python.exists() or Path(sys.prefix).resolve() == folder.resolve():
        return
    os.execv(python, [str(python), "-m", "benchmarks", *arguments])
