"""Values that a program sends to the hosts of a Ray cluster, and what a host checks before it uses one.

The problem: a host of a cluster may have another version of Penstock, of the user's modules, or of the files, and would
compute other bytes without an error. Functions of modules are pickled by name, so nothing notices it.

The solution: the value travels with the sender's version of Penstock and the dataset's fingerprint. The host compares
the version before it unpickles, and the fingerprint after that. A difference is an error that names the host and the
step.

A large pickle is one array in Ray's object store: each host gets it once, and uses the arrays in it in place.
"""

import hashlib
import importlib
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from penstock._graph import Fingerprint, Node, differing_text, fingerprint
from penstock._pickles import load
from penstock._processes import PackedError, pack_error, unpack_error
from penstock._runtime import COPIED_BYTES
from penstock._runtime._shared_values import packed, write
from penstock.errors import MessageError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed
penstock: Any = importlib.import_module("penstock")  # by name: its namespace refers to the packages above this one

_SMALL_BYTES: Final = 50_000
"""A smaller pickle is sent with each call: a host that has just joined may wait ten seconds for an object of Ray."""

_Part: TypeAlias = Literal["source", "order", "functions"]
_last: Final[dict[str, object]] = {}  # the value received last, by its key: many tasks of a process get the same one


class Sent(NamedTuple):
    """The description of a value that was sent, which the receiver compares with its own version and dataset.

    Attributes:
        key: identifies the value.
        host: the sender's.
        version: of the sender's Penstock.
        fingerprint: of the dataset.
        digest: of the pickle and the fingerprint, by which processes find results that another program has requested;
            empty if they keep none.
        kept_bytes: the bytes of results that a process keeps for other programs.
    """

    key: str
    host: str
    version: str
    fingerprint: Fingerprint
    digest: str = ""
    kept_bytes: int = 0


class Failed(NamedTuple):
    """The error of a call on another host."""

    host: str
    error: PackedError

    def unpacked(self) -> Exception:
        """Return the error to raise here: of the same type, with a note that names the host."""
        return unpack_error(self.error, place=f"On host {self.host!r}, in")


def failed(error: BaseException) -> Failed:
    """Return an error of this host."""
    return Failed(socket.gethostname(), pack_error(error, with_cause=True))


def send(value: object, node: Node, *, asked: str, kept_bytes: int = 0) -> tuple[Sent, object]:
    """Store a value for the hosts of the cluster.

    Returns:
        The arguments of tasks that receive the value. The second is the pickle, or a reference that Ray replaces by it.

    Args:
        value: the value.
        node: the dataset in it.
        asked: the user's argument or call that has the value sent, for messages.
        kept_bytes: the bytes of results that a process keeps for other programs that send the same value.

    Raises:
        UsageError: a part of the value can't be pickled.
    """
    pickled = packed((value, node), node, asked=asked)
    memory = np.zeros(pickled.nbytes, np.uint8)  # zeros, since the digest covers the gaps between arrays
    write(pickled, memory, 0)
    sent = Sent(os.urandom(8).hex(), socket.gethostname(), penstock.__version__, fingerprint(node))
    if kept_bytes:
        digest = hashlib.sha256(memory.data)
        digest.update(repr(sent.fingerprint).encode())  # it covers files, of which the pickle has only the paths
        sent = sent._replace(digest=digest.hexdigest(), kept_bytes=kept_bytes)
    return sent, memory if memory.nbytes <= _SMALL_BYTES else ray.put(memory)


def received(sent: Sent, stored: "NDArray[np.uint8]", *, is_fresh: bool = False) -> object:
    """Return a value that was sent, if its dataset is the same on this host.

    Args:
        sent: the description of the value.
        stored: the pickle.
        is_fresh: whether to return another copy, which nothing has used.

    Raises:
        UsageError: this host has another version of Penstock, lacks a module, or has another dataset.
    """
    if is_fresh:
        return _checked(sent, stored)
    if sent.key not in _last:
        _last.clear()
        _last[sent.key] = _checked(sent, stored)
    return _last[sent.key]


def _checked(sent: Sent, stored: "NDArray[np.uint8]") -> object:
    host = socket.gethostname()
    if sent.version != penstock.__version__:
        raise UsageError(
            f"host {host!r} has Penstock {penstock.__version__}, and host {sent.host!r}, which sends the dataset, has "
            f"{sent.version}. Install the same version on all hosts."
        )
    try:
        value, node = cast("tuple[object, Node]", load(stored.data, copied_bytes=COPIED_BYTES))
    except MessageError as error:
        raise UsageError(
            f"host {host!r} can't load the dataset that host {sent.host!r} sends: {error.__cause__!r}. Install the "
            'modules of the dataset there, or send them with ray.init(runtime_env={"working_dir": "."}).'
        ) from error
    own, other = fingerprint(node), sent.fingerprint
    parts: tuple[_Part, ...] = ("source", "order", "functions")
    differing: list[_Part] = [part for part in parts if own.parts()[part] != other.parts()[part]]
    if differing:
        raise UsageError(
            f"the dataset on host {host!r} differs from that on host {sent.host!r} in its {' and '.join(differing)}"
            f"{differing_text(node, own.steps, other.steps, differing[0])}. All hosts need the same modules and files."
        )
    return value


def checked_options(options: object) -> Mapping[str, Any]:
    """Return options for `ray.remote`; none for None.

    Raises:
        UsageError: `options` is no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options must be a mapping of options of ray.remote, as {{'num_cpus': 4}}; got {options!r}")
    return cast("Mapping[str, Any]", options or {})
