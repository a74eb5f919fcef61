"""The versions of the packages, and the machine, on which a demo ran."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import penstock

_PACKAGES: Final = ("numpy", "pillow", "scikit-learn")


def installed_version(package: str) -> str:
    """Return the version of an installed package; "not installed" if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe_machine() -> list[tuple[str, str]]:
    """Return (name, value) pairs that describe the versions and the machine of a measurement."""
    packages = ", ".join(f"{package} {installed_version(package)}" for package in _PACKAGES)
    return [
        ("versions", f"penstock {penstock.__version__}, Python {platform.python_version()}, {packages}"),
        ("machine", f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} processors"),
    ]
