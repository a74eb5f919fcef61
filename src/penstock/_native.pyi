"""The native core of Penstock. Use it through its Python wrappers."""

import typing
from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

class ArenaTable:
    """Which process holds which slot of shared memory."""

    @property
    def slots(self) -> int:
        """How many slots it has words for."""

    @property
    def descriptor(self) -> int:
        """The descriptor of its memory."""

    @property
    def bell_descriptor(self) -> int:
        """The descriptor that is readable when the owner's bell was rung."""

    @property
    def wanted(self) -> int:
        """How many bytes the owner waits for."""

    @wanted.setter
    def wanted(self, size_bytes: int) -> None: ...
    def ring(self) -> None:
        """Rings the owner's bell."""

    def clear_bell(self) -> bool:
        """Makes its descriptor unreadable; whether it was readable."""

    def hold(self, slot: int, participant: int) -> None:
        """Adds a hold on a participant's behalf."""

    def give_back(self, slot: int, participant: int) -> bool:
        """Takes a hold away; False if none is there."""

    def holds(self, slot: int, participant: int) -> int:
        """How many holds a participant has on a slot."""

    def idle(self, slot: int) -> bool:
        """Whether nobody holds the slot."""

    def leased(self, participant: int) -> int:
        """How many holds a participant was given."""

    def returned(self, participant: int) -> int:
        """How many of them are over."""

    @property
    def all_leased(self) -> int:
        """How many holds were given to all participants."""

    @property
    def all_returned(self) -> int:
        """How many of them are over."""

    def acknowledge(self, participant: int) -> None:
        """Counts, and rings the bell."""

    def acknowledged(self, participant: int) -> int:
        """How often a participant did."""

    def release(self, participant: int) -> int:
        """Takes back all that one holds which is gone."""

    def welcome(self, participant: int) -> None:
        """Prepares a participant's number for a new one."""

class ArenaParticipant:
    """One process's part in an arena."""

    @property
    def number(self) -> int:
        """Its number; the owner's is 0."""

    @property
    def here(self) -> bool:
        """Whether this is the process that made it, not a forked child."""

    def lease(self, region: Region, start: int, size_bytes: int, slot: int) -> Lease:
        """
        Leases a slot: the owner an idle one, others one that is held on their behalf.
        """

    def drop(self, slot: int) -> None:
        """Gives back a hold that no lease has taken over."""

    def take_idle(self) -> list[int]:
        """The slots lent that became idle since the last call."""

def arena_table(slots: int) -> ArenaTable:
    """Makes a table; the caller is its owner."""

def open_arena_table(table_descriptor: int, bell_descriptor: int) -> ArenaTable:
    """Maps the table of another process."""

def arena_participant(table: ArenaTable, number: int) -> ArenaParticipant:
    """This process's part in an arena."""

class Bell:
    """A file descriptor that becomes readable when it is rung."""

    def __init__(self) -> None: ...
    def ring(self) -> None:
        """Makes the descriptor readable."""

    def clear(self) -> bool:
        """Makes the descriptor unreadable; returns whether it was readable."""

    def fileno(self) -> int:
        """The descriptor."""

    def wait(self, timeout_seconds: float | None) -> bool:
        """Waits until rung; False after the timeout."""

class Waiter:
    """Waits on any descriptor."""

    def __init__(self) -> None: ...
    def wait(self, descriptor: int, timeout_seconds: float | None) -> bool:
        """Waits until the descriptor is readable; False after the timeout."""

class BytesHandle:
    """Shares the ownership of bytes, as a buffer."""

    def __init__(self, source: object) -> None:
        """Over the buffer, or the other handle's bytes."""

    def __len__(self) -> int: ...
    def __penstock_bytes__(self) -> object: ...
    @property
    def readonly(self) -> bool:
        """Whether the bytes can't be written through this handle."""

    @property
    def owner_name(self) -> str:
        """The name of the type that owns the bytes."""

    def share_readonly(self) -> BytesHandle:
        """The same bytes, read-only."""

    def share(self, start: int, size_bytes: int) -> BytesHandle:
        """A part of the bytes."""

    def compare(self, other: object) -> int:
        """
        Negative, zero or positive, as these bytes come before, are, or come after the others.
        """

    def find_between(self, needle: object, start: int, stop: int) -> int:
        """Where it is first; -1 if nowhere."""

    def rfind_between(self, needle: object, start: int, stop: int) -> int:
        """Where it is last; -1 if nowhere."""

    def count_between(self, needle: object, start: int, stop: int) -> int:
        """How often it is there."""

def living_byte_owners() -> int:
    """How many owners of bytes this module has made and not dropped."""

class CallWhenDropped:
    """
    Calls a function when it is dropped, again where a signal's handler raised in it.
    """

    def __init__(self, function: object) -> None: ...

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
        Copy the rows of `keys` into `out`, C-contiguous and of exactly their bytes. Larger copies run without the GIL. Raises IndexError, with `out` untouched, where a key isn't in [0, len(self)).
        """

def map_file(path: bytes) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
    """
    Return a file's bytes, mapped into memory, as a read-only uint8 array that keeps no descriptor.
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
    Write `float(pixel) * scale + shift` of arrays of `dtype`, uint8, as planes, in at most `num_threads` threads; return -1, or write nothing and return the index of the first item that isn't of the shape of `out`, or overlaps it.
    """

class PoolJob:
    """A job that was not submitted yet, with the buffers it uses."""

def read_path_job(path: bytes, start: int, size: int | None, out: object | None) -> PoolJob:
    """
    Reads a range of a file, opened when the job runs: into `out`, or new Bytes.
    """

def read_descriptor_job(descriptor: int, start: int, size: int | None, out: object | None) -> PoolJob:
    """The same of an open file, of whose descriptor a copy is taken."""

def copy_job(source: object, out: object) -> PoolJob:
    """Copies bytes to as many bytes."""

def stack_job(arrays: Sequence[object], out: object) -> PoolJob:
    """Copies arrays into the rows of `out`."""

def gather_job(
    source: object,
    keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: object,
) -> PoolJob:
    """Copies the rows of `keys` into the rows of `out`."""

def checksum_job(source: object, initial: int) -> PoolJob:
    """Computes a CRC-32."""

def xxh3_job(source: object, seed: int) -> PoolJob:
    """Computes the 64-bit XXH3."""

def decompress_job(source: object, codec: str, size: int | None, out: object | None, max_size: int) -> PoolJob:
    """
    Decompresses: into `out`, or new Bytes of `size`, or of at most `max_size`.
    """

def foreign_job(capsule: object) -> PoolJob:
    """Takes an extension's job."""

class Region:
    """A block of memory, as a writable buffer."""

    def __len__(self) -> int: ...
    @property
    def descriptor(self) -> int:
        """The descriptor of shared memory; -1 for private memory."""

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""

    def populate(self, start: int, size_bytes: int, reading: bool) -> None:
        """Makes the pages of a part be there."""

    def add(self, start: int, amount: int) -> int:
        """
        Adds to a 64-bit word, atomically between all processes; the word before.
        """

    def discard(self, start: int, size_bytes: int) -> None:
        """Gives the pages of a part of shared memory back to the system."""

class Lease:
    """
    The right to use a part of a region, as a writable buffer, until it is dropped.
    """

    @property
    def slot(self) -> int:
        """The slot that is returned when the lease is dropped."""

    def __len__(self) -> int: ...

class ReturnedLeases:
    """Where the slots of dropped leases are collected."""

    def take(self) -> list[int]:
        """The slots that came back since the last call."""

    @property
    def leased(self) -> int:
        """How many leases were given."""

    @property
    def returned(self) -> int:
        """How many came back."""

def region(size_bytes: int, prefault: bool) -> Region:
    """Maps a new region."""

def shared_region(size_bytes: int) -> Region:
    """Maps new memory that other processes can map."""

def open_region(descriptor: int) -> Region:
    """Maps the shared memory of another process."""

def returned_leases(bell: object | None) -> ReturnedLeases:
    """A new collection; the bell, if any, is rung at each return."""

def living_leases() -> int:
    """How many leases there are in this process now."""

def lease(region: Region, start: int, size_bytes: int, returns: ReturnedLeases, slot: int) -> Lease:
    """Leases a part of a region."""

class BestFit:
    """Streaming best fit over a bounded number of open bins, for one thread."""

    def __init__(
        self,
        capacity: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        bins: int,
        most_documents: int,
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

def fill_rows(
    documents: list[typing.Any],
    also: type,
    document: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: object,
    padding: object,
    segment_ids: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")] | None,
    positions: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")] | None,
) -> int:
    """
    Fill the rows of `out`; return -1, or, with nothing written, the index of the first document that isn't a C-contiguous array of one axis and the dtype of `out`, of its very type or of type `also`. Large copies release the GIL.
    """

def fill_rows_from(
    tokens: object,
    starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
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
    Fill the rows of `out`, where document i is `tokens[starts[i]:starts[i + 1]]`, of the dtype of `out`.
    """

def end_when_readable(descriptors: Sequence[int]) -> None:
    """
    End this process when one of some descriptors becomes readable, also in the midst of a call.
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
        Fill `keys` until the first position out of range, and return how many were filled.
        """

    def positions_of(
        self,
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill `positions` until the first key out of range, and return how many were filled.
        """

class Submission:
    """A job that was submitted."""

    def withdraw(self) -> bool:
        """
        Drops the job, unless it was started; whether it was not: then it comes to no mailbox.
        """

class Mailbox:
    """Where jobs come to when they have ended."""

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """Readable if any came."""

    @property
    def here(self) -> bool:
        """Whether it is of this process, and not of its parent."""

    def take(self) -> list[tuple[int, int, object]]:
        """
        Takes what has come: tickets, and 0 and the result, 1 and the exception, or 2 for what was withdrawn.
        """

class Pool:
    """Threads that run jobs."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def here(self) -> bool:
        """Whether it is of this process, and not of its parent."""

    def submit(self, job: PoolJob, ticket: int, mailbox: Mailbox) -> Submission:
        """Has the job run; it comes to the mailbox."""

    def withdraw_all(self) -> None:
        """Withdraws what was not started; that comes to the mailboxes."""

    def end(self, ticket: int, mailbox: Mailbox) -> None:
        """
        Takes no more jobs; the ticket comes to the mailbox after the last has ended.
        """

    @property
    def idle_seconds(self) -> float:
        """How long ago a job ended, or the pool was made."""

    def join(self) -> None:
        """Ends the threads, after that."""

class Claim:
    """The right of one worker to write one block of one batch."""

    @property
    def slot(self) -> int:
        """The slot that the batch lies in."""

    @property
    def block(self) -> int:
        """Which block of its rows; for a merge, the number of row blocks."""

    @property
    def generation(self) -> int:
        """How often the slot had been armed by then."""

    @property
    def number(self) -> int:
        """The batch's place in delivery order."""

    @property
    def merge(self) -> bool:
        """Whether this is the merge of the batch's rows."""

    def __repr__(self) -> str: ...

class Ring:
    """The claim protocol over private or shared memory."""

    def __init__(self, capacity: int, blocks: int, bell: object) -> None: ...
    @staticmethod
    def create_shared(capacity: int, blocks: int) -> Ring:
        """A new ring for several processes, with a bell of its own."""

    @staticmethod
    def attach(memory: int, bell: int) -> Ring:
        """The ring of another process, by its descriptors."""

    def bell(self) -> Bell:
        """Another object for the ring's bell."""

    @property
    def descriptor(self) -> int:
        """The descriptor of its memory; -1 for private memory."""

    @property
    def capacity(self) -> int:
        """How many slots it has."""

    @property
    def blocks(self) -> int:
        """How many row blocks a slot has."""

    def arm(self, slot: int, number: int, blocks: int, merge: bool) -> None:
        """Hands a batch to the workers."""

    def claim(self, worker: int) -> Claim | None:
        """
        Claims a block without waiting; None if there is none, or the ring is stopped.
        """

    def claim_wait(self, worker: int) -> Claim | None:
        """Claims a block; None once the ring is stopped."""

    def rest(self, seconds: float) -> None:
        """Claims nothing for so long, or until the ring is stopped."""

    def finish(self, slot: int, block: int, worker: int) -> bool:
        """A claimed block is written."""

    def ready(self, slot: int) -> bool:
        """Whether every block was written."""

    def drained(self, slot: int) -> bool:
        """Whether a cancelled slot has no writer left."""

    def retire(self, slot: int) -> None:
        """Takes a ready or drained slot back."""

    def cancel(self, slot: int) -> bool:
        """Gives an armed slot up; whether it is drained already."""

    def release_worker(self, worker: int) -> int:
        """Gives a dead worker's blocks to others."""

    def stop(self) -> None:
        """Ends every claim_wait and rest."""

    def stopped(self) -> bool:
        """Whether stop was called."""

def write_integers(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """
    Write exact ints of 64 bits; return the index of the first item that is none, or -1.
    """

def write_floats(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """
    Write exact floats; return the index of the first item that is none, or -1.
    """

def write_booleans(
    items: Sequence[object],
    begin: int,
    out: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order="C", device="cpu")],
    start: int,
) -> int:
    """Write bools; return the index of the first item that is none, or -1."""

def write_arrays(items: Sequence[object], begin: int, out: object, start: int, also: type, num_threads: int) -> int:
    """
    Write C-contiguous arrays of exactly the dtype of `out` and the shape of its rows, of its very type or of type `also`, and outside of `out` or in their own places; return the index of the first item that is none, or -1. Large copies release the GIL, and still larger ones are shared by at most `num_threads` threads.
    """

def split_dicts(elements: Sequence[object], keys: tuple[object, ...]) -> list[list[object]] | None:
    """
    Return a list of values for each key, or None if an element isn't exactly a dict of these keys in order.
    """

def split_sequences(elements: Sequence[object], kind: type, width: int) -> list[list[object]] | None:
    """
    Return a list of values for each place in lists or tuples of exactly this type and length, or None if an element is none.
    """
