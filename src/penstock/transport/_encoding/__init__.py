"""The encoding of elements for another process: a description once, then a small head and memory for each element.

Problem: a nested element has structure (containers, keys, dtypes, shapes) that rarely changes, and data that always
does. Solution: the structure is a *description*, JSON that is sent once; both sides compute from its bytes, by the same
function, a *layout*: the place of each array in memory, and a struct of the numbers in the *head*. A message then is a
head of some ten bytes and the arrays' data, each at a multiple of 64 bytes. The digest of a description identifies its
layout, so that writers and readers need no agreement on numbers. Lists of numbers or text, and all plain values where
the structure does change, are packed into one array of bytes each (`_values`), so their lengths and keys are data, too.

Rejected: pickle for each message (it trusts the sender, and takes longer than the copy of a small batch); layout
numbers (a reader with several writers, or a new one, would have to agree on them); a general format such as Arrow (it
has no torch dtypes, and its nested types are not Python's containers).

Invariants: the decoder trusts nothing. It reads nothing outside the memory, and allocates nothing beyond its size:
every start, size and count is compared before it is used. Types are imported and data is unpickled only if the caller
trusts the sender.
"""

from penstock.transport._encoding._containers import register_container as register_container
from penstock.transport._encoding._decoder import LARGEST_COPIED_BYTES as LARGEST_COPIED_BYTES
from penstock.transport._encoding._decoder import Decoder as Decoder
from penstock.transport._encoding._decoder import Unreadable as Unreadable
from penstock.transport._encoding._device_tensors import MIN_SLOT_BYTES as MIN_SLOT_BYTES
from penstock.transport._encoding._device_tensors import DevicePlace as DevicePlace
from penstock.transport._encoding._device_tensors import OnDevice as OnDevice
from penstock.transport._encoding._device_tensors import ReaderSlot as ReaderSlot
from penstock.transport._encoding._device_tensors import WriterSlot as WriterSlot
from penstock.transport._encoding._encoder import Encoded as Encoded
from penstock.transport._encoding._encoder import Encoder as Encoder
