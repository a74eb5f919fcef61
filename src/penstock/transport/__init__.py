"""Transport of arrays between processes without a copy: pipes for nested tensors, and shared memory by itself.

    with TensorPipeReader() as reader:              # in one process
        for batch in reader:
            ...

    with TensorPipeWriter(address) as writer:       # in another, with the value of reader.address
        writer.send({"image": images, "label": labels})

`Bytes` is a handle over bytes of any owner; `Arena` is the shared memory under the pipes.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock._memory import leased_slots

if TYPE_CHECKING:
    from penstock.transport._arena import Arena, ArenaCounters, AttachedArena, Located, SlotPlace
    from penstock.transport._bytes import Bytes, include_directory
    from penstock.transport._encoding import register_container
    from penstock.transport._pipe import TensorPipeReader, TensorPipeWriter, WriterCounters
    from penstock.transport._pipe._operations import Steps as Steps
    from penstock.transport._pipe._sender import Sender as Sender
else:
    # Loaded on demand: a loader uses the modules below these, but none of these names.
    __getattr__ = _lazy.from_modules(
        __name__,
        Arena="penstock.transport._arena",
        ArenaCounters="penstock.transport._arena",
        AttachedArena="penstock.transport._arena",
        Located="penstock.transport._arena",
        SlotPlace="penstock.transport._arena",
        Bytes="penstock.transport._bytes",
        include_directory="penstock.transport._bytes",
        register_container="penstock.transport._encoding",
        TensorPipeReader="penstock.transport._pipe",
        TensorPipeWriter="penstock.transport._pipe",
        WriterCounters="penstock.transport._pipe",
        Steps="penstock.transport._pipe._operations",
        Sender="penstock.transport._pipe._sender",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = [
    "Arena",
    "ArenaCounters",
    "AttachedArena",
    "Bytes",
    "Located",
    "SlotPlace",
    "TensorPipeReader",
    "TensorPipeWriter",
    "WriterCounters",
    "include_directory",
    "leased_slots",
    "register_container",
]
