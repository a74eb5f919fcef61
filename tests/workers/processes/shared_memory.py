"""How much memory this process shares with others, as the system counts it."""

import contextlib
import os


def shared_bytes() -> int:
    """Return the bytes of all pages that lie in memory without a name to which this process has a descriptor."""
    found: dict[int, int] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:"):
                status = os.stat(int(descriptor))
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())
