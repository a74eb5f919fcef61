"""Arrays move between threads and processes without a copy: pipes for nested tensors, and the shared memory under them.

with TensorPipeReader() as reader:              # in one process
    for batch in reader:
        ...

with TensorPipeWriter(address) as writer:       # in another, which was given reader.address
    writer.send({"image": images, "label": labels})
"""

from penstock.transport._arena import Arena as Arena
from penstock.transport._arena import ArenaCounters as ArenaCounters
from penstock.transport._bytes import Bytes as Bytes
from penstock.transport._bytes import include_directory as include_directory
from penstock.transport._encoding import register_container as register_container
from penstock.transport._memory import leased_slots as leased_slots
from penstock.transport._pipe import TensorPipeReader as TensorPipeReader
from penstock.transport._pipe import TensorPipeWriter as TensorPipeWriter
from penstock.transport._pipe import WriterCounters as WriterCounters
