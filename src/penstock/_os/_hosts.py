"""The name of this host, among those of one folder or job."""

import contextlib
import hashlib
import os


def this_host() -> str:
    """Return a name of this host, among those that may share a folder.

    Containers may have equal names, and their own numbers of processes. So may machines; each of their boots has an ID.

    Returns:
        8 hexadecimal digits.
    """
    texts = [os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")]
    with contextlib.suppress(OSError):  # not on Linux
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            texts.append(stream.read())
        texts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=4).hexdigest()
