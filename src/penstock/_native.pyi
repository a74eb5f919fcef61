"""The native core of Penstock. Use it through its Python wrappers."""

import typing
from collections.abc import Callable, Sequence
from typing import Annotated, overload

import numpy
import numpy.typing
from numpy.typing import NDArray

class ArenaTable:
    """The holds of processes on the slots of shared memory."""

    @property
    def slots(self) -> int:
        """The number of slots."""

    @property
    def descriptor(self) -> int:
        """The descriptor of its memory."""

    @property
    def bell_descriptor(self) -> int:
        """The descriptor of the owner's bell."""

    @property
    def wanted(self) -> int:
        """The number of bytes that the owner waits for."""

    @wanted.setter
    def wanted(self, size_bytes: int) -> None: ...
    def ring(self) -> None:
        """Ring the owner's bell."""

    def clear_bell(self) -> bool:
        """Make the bell's descriptor unreadable; return whether it was readable."""

    def hold(self, slot: int, participant: int) -> None:
        """Add a hold on a participant's behalf."""

    def give_back(self, slot: int, participant: int) -> bool:
        """Remove a hold; return False if there is none."""

    def holds(self, slot: int, participant: int) -> int:
        """Return the number of holds of a participant on a slot."""

    def idle(self, slot: int) -> bool:
        """Return whether no participant holds the slot."""

    def leased(self, participant: int) -> int:
        """Return the number of holds that were added for a participant."""

    def returned(self, participant: int) -> int:
        """Return the number of a participant's holds that have ended."""

    @property
    def all_leased(self) -> int:
        """The number of holds that were added for all participants."""

    @property
    def all_returned(self) -> int:
        """The number of all holds that have ended."""

    def acknowledge(self, participant: int) -> None:
        """Count one more acknowledgement of a participant, and ring the bell."""

    def acknowledged(self, participant: int) -> int:
        """Return the number of acknowledgements of a participant."""

    def release(self, participant: int) -> int:
        """Remove all holds of a participant that has ended; return their number."""

    def welcome(self, participant: int) -> None:
        """Prepare a number for a new participant."""

class ArenaParticipant:
    """One process's part in an arena."""

    @property
    def number(self) -> int:
        """Its number; 0 for the owner."""

    @property
    def here(self) -> bool:
        """Whether this process created it; False in a forked child."""

    def lease(self, region: Region, start: int, size_bytes: int, slot: int) -> Lease:
        """
        Lease a slot: for the owner an idle one, for others one that is held on their behalf.
        """

    def drop(self, slot: int) -> None:
        """Return a hold that no lease has adopted."""

    def take_idle(self) -> list[int]:
        """Return the leased slots that have become idle since the last call."""

def arena_table(slots: int) -> ArenaTable:
    """Create a table; the caller is its owner."""

def open_arena_table(table_descriptor: int, bell_descriptor: int) -> ArenaTable:
    """Map the table of another process."""

def arena_participant(table: ArenaTable, number: int) -> ArenaParticipant:
    """Create this process's part in an arena."""

class Bell:
    """A file descriptor that becomes readable when it is rung."""

    def __init__(self) -> None: ...
    def ring(self) -> None:
        """Make the descriptor readable."""

    def clear(self) -> bool:
        """Make the descriptor unreadable; return whether it was readable."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until it is rung; return False after the timeout."""

class Waiter:
    """Waits on any descriptor."""

    def __init__(self) -> None: ...
    def wait(self, descriptor: int, timeout_seconds: float | None) -> bool:
        """Wait until the descriptor is readable; return False after the timeout."""

class BytesHandle:
    """A shared owner of bytes, as a buffer."""

    def __init__(self, source: object) -> None:
        """Create a handle over a buffer, or over the bytes of another handle."""

    def __len__(self) -> int: ...
    def __penstock_bytes__(self) -> object: ...
    @property
    def readonly(self) -> bool:
        """Whether the bytes can't be written through this handle."""

    @property
    def owner_name(self) -> str:
        """The name of the type that owns the bytes."""

    def share_readonly(self) -> BytesHandle:
        """Return a read-only handle over the same bytes."""

    def share(self, start: int, size_bytes: int) -> BytesHandle:
        """Return a handle over a part of the bytes."""

    def compare(self, other: object) -> int:
        """
        Return a negative number, 0 or a positive one, if these bytes are less, equal or greater.
        """

    def find_between(self, needle: object, start: int, stop: int) -> int:
        """Return the first position of the needle; -1 if there is none."""

    def rfind_between(self, needle: object, start: int, stop: int) -> int:
        """Return the last position of the needle; -1 if there is none."""

    def count_between(self, needle: object, start: int, stop: int) -> int:
        """Return the number of occurrences of the needle."""

def crc32c(source: object) -> int:
    """Return the CRC-32C of a buffer."""

def decompressed(source: object, codec: str, max_size: int) -> bytes:
    """Return the decompressed bytes of a buffer, at most `max_size`."""

def living_byte_owners() -> int:
    """
    Return the number of owners of bytes that this module has created and not dropped.
    """

class CallWhenDropped:
    """
    Calls a function when it is dropped, and again if a signal's handler raised in it.
    """

    def __init__(self, function: object, never_raises: bool = False) -> None: ...

class RowTable:
    """
    Rows of equal size at equal strides in one or more pieces of memory, copied by key.
    """

    def __init__(self, pieces: list[typing.Any], row_bytes: int, stride_bytes: int) -> None:
        """
        Number the rows that fit into each uint8 array of `pieces`, one piece after another, and keep the arrays.
        """

    def __len__(self) -> int:
        """Return the number of rows."""

    def gather(
        self,
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        out: Annotated[NDArray[numpy.uint8], dict(order="C", device="cpu")],
    ) -> None:
        """
        Copy the rows of `keys` into `out`, C-contiguous and of exactly their bytes. Larger copies run without the GIL. Raises IndexError, with `out` unchanged, if a key isn't in [0, len(self)).
        """

def gather_rows(
    tables: list[RowTable],
    bounds: numpy.typing.NDArray[numpy.int64],
    keys: numpy.typing.NDArray[numpy.int64],
    out: numpy.typing.NDArray[numpy.uint8],
) -> None:
    """
    Copy rows of several tables into `out`, as `RowTable.gather` does; keys `bounds[k]` to `bounds[k + 1]` are those of table k.
    """

def has_repeats(
    keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> bool:
    """Return whether a key occurs more than once."""

def map_file(path: bytes) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
    """
    Return a file's bytes, mapped into memory, as a read-only uint8 array that keeps no descriptor.
    """

def has_jpeg() -> bool:
    """Return whether this build decodes JPEGs."""

def read_image_sizes(
    items: Sequence[object],
    is_upright: bool,
    out: Annotated[NDArray[numpy.int64], dict(shape=(None, 2), order="C", device="cpu")],
    start: int,
) -> tuple[int, bool, str] | None:
    """
    Write the width and height of the images from `start` on; return as `decode_images_to_bytes`.
    """

def decode_images_to_bytes(
    items: Sequence[object],
    boxes: Annotated[NDArray[numpy.int64], dict(shape=(None, 4), order="C", device="cpu", writable=False)],
    mirrored: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    is_upright: bool,
    has_planes: bool,
    scale: Annotated[NDArray[numpy.float32], dict(shape=(3), order="C", device="cpu", writable=False)],
    shift: Annotated[NDArray[numpy.float32], dict(shape=(3), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None, None), order="C", device="cpu")],
    start: int,
) -> tuple[int, bool, str] | None:
    """
    Write the images from `start` on, each resized to the size of `out`; return None, or the index of an image that can't be read, whether its bytes may be right, and the reason. A box is (left, top, right, bottom); zeros stand for all of the image.
    """

def decode_images_to_floats(
    items: Sequence[object],
    boxes: Annotated[NDArray[numpy.int64], dict(shape=(None, 4), order="C", device="cpu", writable=False)],
    mirrored: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    is_upright: bool,
    has_planes: bool,
    scale: Annotated[NDArray[numpy.float32], dict(shape=(3), order="C", device="cpu", writable=False)],
    shift: Annotated[NDArray[numpy.float32], dict(shape=(3), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu")],
    start: int,
) -> tuple[int, bool, str] | None:
    """
    Write the images from `start` on, each resized to the size of `out`; return None, or the index of an image that can't be read, whether its bytes may be right, and the reason. A box is (left, top, right, bottom); zeros stand for all of the image.
    """

def normalize_images(
    items: Sequence[object],
    dtype: object,
    scale: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    shift: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu")],
    num_threads: int,
) -> int:
    """
    Write `float(pixel) * scale + shift` of arrays of `dtype`, uint8, as planes, in at most `num_threads` threads; return -1, or write nothing and return the index of the first item that doesn't have the shape of `out`, or overlaps it.
    """

class PoolJob:
    """A job that is not submitted yet, with its buffers."""

def read_path_job(path: bytes, start: int, size: int | None, out: object | None) -> PoolJob:
    """
    Create a job that opens a file and reads a range of it: into `out`, or into new Bytes.
    """

def read_descriptor_job(descriptor: int, start: int, size: int | None, out: object | None) -> PoolJob:
    """Create the same job for an open file; the descriptor is copied."""

def copy_job(source: object, out: object) -> PoolJob:
    """Create a job that copies bytes."""

def stack_job(arrays: Sequence[object], out: object) -> PoolJob:
    """Create a job that copies arrays into the rows of `out`."""

def gather_job(
    source: object,
    keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: object,
) -> PoolJob:
    """Create a job that copies the rows of `keys` into the rows of `out`."""

def checksum_job(source: object, initial: int) -> PoolJob:
    """Create a job that computes a CRC-32."""

def xxh3_job(source: object, seed: int) -> PoolJob:
    """Create a job that computes the 64-bit XXH3."""

def decompress_job(source: object, codec: str, size: int | None, out: object | None, max_size: int) -> PoolJob:
    """
    Create a job that decompresses: into `out`, or into new Bytes of `size`, or of at most `max_size`.
    """

def foreign_job(capsule: object) -> PoolJob:
    """Take an extension's job."""

class Region:
    """A region of memory, as a writable buffer."""

    def __len__(self) -> int: ...
    @property
    def descriptor(self) -> int:
        """The descriptor of shared memory; -1 for private memory."""

    @property
    def address(self) -> int:
        """The address of its mapping in this process."""

    def populate(self, start: int, size_bytes: int, reading: bool) -> None:
        """Map the pages of a part, so that accesses cause no page fault."""

    def add(self, start: int, amount: int) -> int:
        """
        Add to a 64-bit word, atomically between all processes; return the word before.
        """

    def discard(self, start: int, size_bytes: int) -> None:
        """Return the pages of a part of shared memory to the system."""

class Lease:
    """
    The right to use a part of a region, as a writable buffer, until it is dropped.
    """

    @property
    def slot(self) -> int:
        """The slot that is returned when the lease is dropped."""

    def __len__(self) -> int: ...

class ReturnedLeases:
    """Collects the slots of dropped leases."""

    def take(self) -> list[int]:
        """Return the slots of leases dropped since the last call."""

    @property
    def leased(self) -> int:
        """The number of leases created."""

    @property
    def returned(self) -> int:
        """The number of leases dropped."""

def region(size_bytes: int, prefault: bool) -> Region:
    """Map a new region."""

def shared_region(size_bytes: int) -> Region:
    """Map new memory that other processes can map."""

def open_region(descriptor: int) -> Region:
    """Map the shared memory of another process."""

def returned_leases(bell: object | None) -> ReturnedLeases:
    """Create a collection; the bell, if any, is rung at each drop."""

def living_leases() -> int:
    """Return the number of leases in this process now."""

def lease(
    region: Region, start: int, size_bytes: int, returns: ReturnedLeases, slot: int, after: object | None
) -> Lease:
    """
    Lease a part of a region; `after` is dropped once the slot has been returned.
    """

class BestFit:
    """Streaming best fit over a bounded number of open bins, for one thread."""

    def __init__(
        self,
        capacity: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        bins: int,
        max_documents: int,
    ) -> None: ...
    def open(
        self,
        room: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None:
        """
        Open bins, oldest first, with `room` left in each feature and `documents` in them.
        """

    def assign(
        self,
        lengths: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        bins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        closed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        closed_before: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill `bins` with each document's bin, the others with the bins that closed and the number of documents assigned by then, and return how many closed. Many documents are assigned without the GIL.
        """

    def __len__(self) -> int:
        """Return the number of open bins."""

    def read(
        self,
        numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        room: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """Fill the outputs with the open bins, oldest first."""

class Documents:
    """Documents of one token size, and their memory."""

    @overload
    def __init__(self, arrays: list[typing.Any], dtype: object, kind: type, also: type) -> None:
        """
        Open arrays up to the first that isn't C-contiguous, of one axis and `dtype`, and exactly of type `kind` or `also`. Each is a document.
        """

    @overload
    def __init__(
        self,
        tokens: object,
        starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None:
        """
        Open an array in which document i is `tokens[starts[i]:starts[i + 1]]`.
        """

    def __len__(self) -> int:
        """Return the number of documents."""

    def lengths(self, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")]) -> None:
        """Fill `out` with the number of tokens of each."""

def fill_rows(
    documents: Documents,
    document: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: object,
    padding: object,
    segment_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")] | None,
    positions: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")] | None,
) -> None:
    """
    Fill the rows of `out`: row i has the pieces `bounds[i]` to `bounds[i + 1]`. Large copies release the GIL.
    """

def end_when_readable(descriptors: Sequence[int]) -> None:
    """
    End this process when one of the descriptors becomes readable, also during a call that keeps the GIL.
    """

class Permutation:
    """A keyed bijection of [0, length), computed per position."""

    def __init__(self, length: int, key: int) -> None: ...
    def key_at(self, position: int) -> int:
        """Return the key at `position`, which must be in range."""

    def position_of(self, key: int) -> int:
        """Return the position of `key`, which must be in range."""

    def keys_at(
        self,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill `keys` until the first position out of range, and return the number filled.
        """

    def positions_of(
        self,
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill `positions` until the first key out of range, and return the number filled.
        """

class Lanes:
    """The order of one epoch of a block shuffle, computed per position."""

    def __init__(
        self,
        rows: int,
        columns: int,
        lanes: int,
        block: int,
        ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        piece_seed: int,
        lane_seed: int,
    ) -> None: ...
    def keys_at(
        self,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill `keys` until the first position out of range, and return the number filled.
        """

class Submission:
    """A submitted job."""

    def withdraw(self) -> bool:
        """
        Drop the job if it has not started; return whether it had not. Then it arrives in no mailbox.
        """

class Mailbox:
    """The jobs that have ended."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Return the descriptor, which is readable if there are any."""

    @property
    def here(self) -> bool:
        """Whether this process created it; False in a forked child."""

    def take(self) -> list[tuple[int, int, object]]:
        """
        Take the jobs that have ended: tickets, and 0 and the result, 1 and the exception, or 2 if withdrawn.
        """

class Pool:
    """Threads that run jobs."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def here(self) -> bool:
        """Whether this process created it; False in a forked child."""

    def submit(self, job: PoolJob, ticket: int, mailbox: Mailbox) -> Submission:
        """Run the job; it arrives in the mailbox when it has ended."""

    def withdraw_all(self) -> None:
        """
        Withdraw the jobs that have not started; they arrive in their mailboxes.
        """

    def end(self, ticket: int, mailbox: Mailbox) -> None:
        """
        Accept no more jobs; the ticket arrives in the mailbox after the last job has ended.
        """

    @property
    def idle_seconds(self) -> float:
        """The time since a job ended, or the pool was created."""

    def join(self) -> None:
        """Wait for the end of the threads, after end()."""

def tar_record(content: bytes) -> dict[typing.Any, typing.Any] | None:
    """
    Return the record whose members are all of `content`: `__key__`, and the content of each field; None
    if a header hasn't the usual form, or the members aren't those of one record.
    """

class SampleRecords:
    """The samples of shards of MosaicML Streaming."""

    def __init__(self, columns: Sequence[tuple[str, int, str, object]]) -> None:
        """
        Args:
            columns: for each its name, its size in bytes, which is 0 if it varies, its kind (bytes, text,
                integer or scalar), and, for a scalar, an array of one item that has its dtype.
        """

    def record(self, content: bytes) -> dict[typing.Any, typing.Any] | None:
        """Return the columns of a sample; None if it doesn't have these columns."""

def recycle_arrays(numpy: object) -> None:
    """
    Make the arrays of this thread's context from recycled blocks; `numpy` has NumPy's `_ARRAY_API`.
    """

def allow_recycled(more_bytes: int) -> None:
    """
    Change the number of bytes without an array that this process keeps at most, which is 0 at first.
    """

def offer_block(region: Region, start: int, size_bytes: int) -> None:
    """
    Give a part of a region to the next array of exactly its size, made in a thread that has called recycle_arrays.
    """

def is_offer_free() -> bool:
    """Return whether no array is in the offered block."""

def end_offer() -> bool:
    """
    End the offer; return whether an array still uses the block, whose memory is then private and must stay mapped.
    """

def recycled_bytes() -> int:
    """Return the number of kept bytes that no array uses."""

class Claim:
    """The right of one worker to write one block of one batch."""

    @property
    def slot(self) -> int:
        """The slot of the batch."""

    @property
    def block(self) -> int:
        """The block of its rows; for a merge, the number of row blocks."""

    @property
    def generation(self) -> int:
        """The number of times that the slot had been armed."""

    @property
    def number(self) -> int:
        """The batch's number in delivery order."""

    @property
    def merge(self) -> bool:
        """Whether this is the merge of the batch's rows."""

    def __repr__(self) -> str: ...

class Ring:
    """The claim protocol over private or shared memory."""

    def __init__(self, capacity: int, blocks: int, bell: object) -> None: ...
    @staticmethod
    def create_shared(capacity: int, blocks: int) -> Ring:
        """Create a ring for several processes, with a new bell."""

    @staticmethod
    def attach(memory: int, bell: int) -> Ring:
        """Return the ring of another process, by its descriptors."""

    def bell(self) -> Bell:
        """Return a new object for the ring's bell."""

    @property
    def descriptor(self) -> int:
        """The descriptor of its memory; -1 for private memory."""

    @property
    def capacity(self) -> int:
        """The number of slots."""

    @property
    def blocks(self) -> int:
        """The largest number of row blocks of a slot."""

    def arm(self, slot: int, number: int, blocks: int, merge: bool) -> None:
        """Offer a batch to the workers."""

    def claim(self, worker: int) -> Claim | None:
        """
        Claim a block without waiting; None if no block is free, or the ring is stopped.
        """

    def claim_wait(self, worker: int) -> Claim | None:
        """Wait for a free block and claim it; None once the ring is stopped."""

    def rest(self, seconds: float) -> None:
        """Sleep for so long, or until the ring is stopped."""

    def finish(self, slot: int, block: int, worker: int) -> bool:
        """
        Mark a claimed block as written; return whether the slot was seen complete.
        """

    def ready(self, slot: int) -> bool:
        """Return whether every block was written."""

    def drained(self, slot: int) -> bool:
        """Return whether a cancelled slot has no writer left."""

    def retire(self, slot: int) -> None:
        """Make a ready or drained slot idle."""

    def cancel(self, slot: int) -> bool:
        """Cancel an armed slot; return whether it is drained already."""

    def release_worker(self, worker: int) -> int:
        """Free the blocks of a worker that has ended; return their number."""

    def stop(self) -> None:
        """End every claim_wait and rest."""

    def stopped(self) -> bool:
        """Return whether stop was called."""

def write_integers(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """
    Write exact ints of 64 bits; return the index of the first other item, or -1.
    """

def write_floats(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """Write exact floats; return the index of the first other item, or -1."""

def write_booleans(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """Write bools; return the index of the first other item, or -1."""

def write_arrays(items: Sequence[object], begin: int, out: object, start: int, also: type, num_threads: int) -> int:
    """
    Write arrays of exactly the dtype of `out` and the shape of its rows, of its exact type or of type `also`, outside of `out` or in their own places; return the index of the first other item, or -1. Large copies release the GIL; still larger ones of C-contiguous arrays are divided among at most `num_threads` threads.
    """

def write_tensors(
    items: Sequence[object], begin: int, out: object, start: int, kind: type, type_code: int, num_threads: int
) -> int:
    """
    Write torch tensors as `write_arrays` writes arrays: of exactly the type `kind`, of a dtype with DLPack's `type_code` and the item size of `out`, in host memory, as they are stored, and without gradients. Nothing is written where the type has no table of DLPack's C functions.
    """

def pad_arrays(
    items: Sequence[object], make: Callable[[list[int]], object | None], fill: object, also: type
) -> object | None:
    """
    Write arrays of exactly the dtype and the type of `fill`, or of type `also`, to the beginnings of the rows of `make(lengths)`, and `fill` behind them. Return that, or None where an item is another or has another shape behind its first axis, or where `make` returns None.
    """

def pad_tensors(
    items: Sequence[object],
    make: Callable[[list[int]], object | None],
    fill: object,
    kind: type,
    type_code: int,
    rank: int,
) -> object | None:
    """
    Write torch tensors as `pad_arrays` writes arrays; of those that `write_tensors` accepts, with `rank` axes.
    """

def split_dicts(elements: Sequence[object], keys: tuple[object, ...]) -> list[list[object]] | None:
    """
    Return a list of values for each key, or None if an element isn't exactly a dict of these keys in order.
    """

def split_sequences(elements: Sequence[object], kind: type, width: int) -> list[list[object]] | None:
    """
    Return a list of values for each place in lists or tuples of exactly this type and length, or None for other elements.
    """

def bucket_of(seconds: float) -> int:
    """Return the number of the bucket of a duration."""

class StepTimes:
    """The times that one thread has spent in each step of a dataset."""

    def __init__(
        self,
        words: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        numbers: dict[typing.Any, typing.Any],
        steps: int,
        step_words: int,
    ) -> None:
        """
        Continue the times in an array, given the number of each step by its identity.
        """

    def start(self, rows: int) -> None:
        """
        Begin a block of rows of the dataset; the time of its first step counts from now on.
        """

    def resume(self) -> None:
        """
        Begin a step of the same block; the time since the last call is no step's.
        """

    def begin(self, step: object | None) -> None:
        """Begin a step that is no part of a block."""

    def lap(self, step: object | None, elements: int, weight: int = 1) -> None:
        """
        End a step: the time since the last call is the step's. It stands for `weight` such calls.
        """

    def begin_around(self) -> float:
        """
        Begin a time in which other steps may be computed; return a mark for `end_around`.
        """

    def end_around(self, step: object | None, mark: float, elements: int) -> float:
        """
        End that time; what no other step has taken of it is the step's. Return these seconds.
        """

    def leave_out(self, seconds: float) -> None:
        """
        Leave a wait for other threads out of a time that `begin_around` began.
        """

    def count(self, step: object | None, word: int, amount: float) -> None:
        """Add to a word of a step, for a number that isn't a time."""

    def work(self, seconds: float) -> None:
        """
        Add the time of all work at a block, steps included; and what `add_lock_waits` adds.
        """

    def add_lock_waits(self) -> None:
        """
        Add the calling thread's waits for the interpreter's lock since the last call.
        """

    def enter(self) -> tuple[float, float] | None:
        """
        Begin a block of a step's parent; return the time that the step has taken so far, for `leave`.

        For the outermost block, which no step evaluates, this is None.
        """

    def leave(self, before: tuple[float, float] | None) -> None:
        """
        End the block of the parent, whose steps have ended: from now on, time is that of the step above it.
        """

class WaitTimes:
    """The waits of one consumer."""

    def __init__(self, words: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")]) -> None:
        """Continue the waits in an array."""

    def note(self, cause: int, requested: float, received: float, last: float) -> None:
        """
        Note the wait from a request to a delivery, and the time since the delivery before, unless they are short.
        """

class Strings:
    """Texts or bytes in Arrow's layout, in one or more pieces, read by row."""

    def __init__(self, pieces: list[tuple[object, ...]], is_text: bool) -> None:
        """
        Number the rows of pieces, one piece after another, and keep the arrays. A piece is a tuple of the offsets of the rows and the end of the last one, int32 or int64; the content, uint8; the validity, uint8 with a bit for each row, or None; and the number of the first row's bit.
        """

    def __len__(self) -> int:
        """Return the number of rows."""

def take_strings(
    parts: list[Strings],
    bounds: numpy.typing.NDArray[numpy.int64],
    rows: numpy.typing.NDArray[numpy.int64],
    places: numpy.typing.NDArray[numpy.int64],
    out: list[object],
) -> int:
    """
    Set item `places[i]` of a list to the value of row `rows[i]`, for each i, and return how many are None. Rows `bounds[k]` to `bounds[k + 1]` are those of part k. Raises IndexError for a row or place that doesn't exist and for an offset outside of the content, and UnicodeDecodeError for a text that isn't UTF-8; items before it have been set.
    """

class PackedStrings:
    """
    Texts or bytes in one block of memory, on their way to another process.
    """

    def __init__(self, count: int, is_text: bool) -> None:
        """Make places for so many empty texts, or bytes."""

    def __len__(self) -> int:
        """Return the number of places."""

    @property
    def is_text(self) -> bool:
        """Whether they are texts, not bytes."""

    def take(
        self,
        parts: list[Strings],
        bounds: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.int64],
        places: numpy.typing.NDArray[numpy.int64],
    ) -> int:
        """
        Copy rows to places, as `take_strings` does, without the interpreter's lock. A null becomes an empty one, and texts may not be UTF-8, which `unpacked_texts` finds.
        """

    def pack(self, values: list[object]) -> bool:
        """
        Copy the items of a list, one to each place. Return False if one isn't exactly a str or bytes, or can't be UTF-8.
        """

    @property
    def places(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """
        The memory of the places, for `unpacked_texts` and `unpacked_bytes`; nothing may be added while it is used.
        """

    @property
    def content(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """The memory of the content, likewise."""

def unpacked_texts(places: object, content: object) -> list[str]:
    """
    Return the texts of a `PackedStrings`, from its memory. Raises IndexError for a place that is damaged, and UnicodeDecodeError for a text that isn't UTF-8.
    """

def unpacked_bytes(places: object, content: object) -> list[bytes]:
    """Return the bytes of a `PackedStrings`, likewise."""
