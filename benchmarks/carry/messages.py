"""Messages: nested arrays of a given size with the message's number inside, and their digests."""

import zlib
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

NUM_LABELS = 256
PAGE_BYTES = 4096


class Target(TypedDict):
    """The inner part of a message: `depth` is float32, `label` int64 [256]."""

    depth: NDArray[np.float32]
    label: NDArray[np.int64]


class Message(TypedDict):
    """A message: `image` is uint8 [n] and holds three quarters of the bytes."""

    image: NDArray[np.uint8]
    target: Target


def first_message(num_bytes: int) -> Message:
    """Return message 0 of about `num_bytes`; its contents don't repeat from page to page."""
    image = np.arange(num_bytes * 3 // 4 // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    depth = np.arange(num_bytes // 4 // 4, dtype=np.float32)
    return {"image": image.view(np.uint8), "target": {"depth": depth, "label": np.zeros(NUM_LABELS, np.int64)}}


def numbered(message: Message, number: int) -> Message:
    """Return the message with another number: new labels, and the same large arrays."""
    target = message["target"]
    return {
        "image": message["image"],
        "target": {"depth": target["depth"], "label": np.full_like(target["label"], number)},
    }


def leaves(message: Message) -> tuple[NDArray[np.generic], ...]:
    """Return a message's arrays, always in the same order."""
    return message["image"], message["target"]["depth"], message["target"]["label"]


def from_leaves(arrays: tuple[NDArray[np.generic], ...]) -> Message:
    """Return the message with these `leaves`."""
    image, depth, label = arrays
    return {
        "image": image.view(np.uint8),
        "target": {"depth": depth.view(np.float32), "label": label.view(np.int64)},
    }


def total_bytes(message: Message) -> int:
    """Return the total bytes of the message's arrays."""
    return sum(leaf.nbytes for leaf in leaves(message))


def touch(message: Message) -> int:
    """Read one byte of every page, so that the whole message is mapped here; return their sum."""
    return sum(int(leaf.view(np.uint8)[::PAGE_BYTES].sum(dtype=np.int64)) for leaf in leaves(message))


def digest(message: Message) -> NDArray[np.uint64]:
    """Return uint64 [1, 3]: a digest of every array, over its dtype, shape and bytes."""
    digests = [
        zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).data, zlib.crc32(f"{leaf.dtype}{leaf.shape}".encode()))
        for leaf in leaves(message)
    ]
    return np.array([digests], np.uint64)
