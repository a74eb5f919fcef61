"""The index of a LitData dataset: the chunks that it lists, and how their items are encoded."""

import contextlib
import json
import os
from collections.abc import Generator, Mapping
from typing import Any, Final, cast

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._encoded import DamageError
from penstock.sources._local_files import raise_source_error
from penstock.sources._shards import count_in_index, text_in_index

_NAME: Final = "index.json"
_TOKENS_LOADER: Final = "TokensLoader"
_LOADERS: Final = ("PyTreeLoader", _TOKENS_LOADER)


@frozen
class Chunk:
    """A chunk, as the index describes it.

    Attributes:
        path: absolute.
        items: how many it has.
        bytes: its size before it was compressed as a whole. Older versions of LitData leave out the numbers before the
            items.
        tokens: how many it has; None if it has none, or if the index doesn't say.
    """

    path: str
    items: int
    bytes: int
    tokens: int | None


@frozen
class Encoding:
    """The encoding of the items of a dataset.

    Attributes:
        folder: of the dataset, absolute.
        formats: of the leaves of an item.
        tree: the description of an item; None for a single leaf.
        compression: such as "zstd:4", or "".
        level: what is compressed at once: "chunk", "batch" or "sample".
        has_tokens: whether items are tokens for `TokensLoader`.
    """

    folder: str
    formats: tuple[str, ...]
    tree: str | None
    compression: str
    level: str
    has_tokens: bool


def is_litdata(folder: str) -> bool:
    """Return whether a folder with an `index.json` has that of LitData."""
    try:
        with open(os.path.join(folder, _NAME), "rb") as stream:
            found: object = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "chunks" in found


def read_index(folder: str) -> tuple[Encoding, tuple[Chunk, ...]]:
    """Return how the items of a folder are stored, and its chunks in the order of the keys.

    Args:
        folder: absolute.

    Returns:
        At least one chunk.

    Raises:
        UsageError: there is none, it lists no chunk, or its chunks can't be read here.
        SourceError: it can't be read.
        CorruptRecordError: it is no index of LitData.
    """
    path = os.path.join(folder, _NAME)
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"LitData reads a folder with an {_NAME}; {folder!r} has none. Pass the output_dir of litdata.optimize; if "
            "each worker has left an index of its own there, the run didn't end: run it again."
        ) from error
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    with parsing_index(folder):
        return _index_of(folder, json.loads(content))


@contextlib.contextmanager
def parsing_index(folder: str) -> Generator[None]:
    """Raise the errors of a damaged index.

    Args:
        folder: absolute.

    Raises:
        UsageError: the index has what can't be read here.
        CorruptRecordError: it is no index of LitData.
    """
    try:
        yield
    except UsageError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, DamageError) as error:
        raise CorruptRecordError(
            f"{os.path.join(folder, _NAME)!r} is no index of LitData: {type(error).__name__}: {error}. Restore it, or "
            "write it again."
        ) from error


def _index_of(folder: str, index: Mapping[str, Any]) -> tuple[Encoding, tuple[Chunk, ...]]:
    if "shards" in index:
        raise UsageError(f"{folder!r} has an index of MosaicML Streaming. Read it by ps.sources.MDS.")
    config = cast("Mapping[str, Any]", index["config"])
    _check_config(folder, config)
    chunks = tuple(_chunk_of(folder, entry) for entry in cast("list[Mapping[str, Any]]", index["chunks"]))
    if not chunks:
        raise UsageError(f"an index must list at least one chunk; that of {folder!r} lists none. Write items first.")
    formats = tuple(text_in_index(kind) for kind in config["data_format"])
    encoding = Encoding(
        folder=folder,
        formats=formats,
        tree=None if config.get("data_spec") is None else text_in_index(config["data_spec"]),
        compression=config.get("compression") or "",
        level=config.get("compression_level") or "chunk",
        # Older versions of LitData don't name the loader, but only that of tokens counts them.
        has_tokens=config.get("item_loader") == _TOKENS_LOADER or any(chunk.tokens is not None for chunk in chunks),
    )
    return encoding, chunks


def _check_config(folder: str, config: Mapping[str, Any]) -> None:
    loader = config.get("item_loader") or _LOADERS[0]
    if loader == "ParquetLoader":
        raise UsageError(f"the chunks of {folder!r} are Parquet files. Read them by ps.sources.Parquet.")
    if loader not in _LOADERS:
        raise UsageError(
            f"items must be those of {' or '.join(_LOADERS)}; {folder!r} has those of {loader!r}. Optimize the dataset "
            "again with one of these."
        )
    if config.get("encryption"):
        raise UsageError(f"the items of {folder!r} are encrypted, and can't be read. Optimize the dataset again.")
    compression = config.get("compression")
    if compression and text_in_index(compression).partition(":")[0] != "zstd":
        raise UsageError(
            f"compressed items must be of zstd; {folder!r} has {compression!r}. Optimize the dataset again."
        )


def _chunk_of(folder: str, entry: Mapping[str, Any]) -> Chunk:
    return Chunk(
        path=os.path.join(folder, *text_in_index(entry["filename"]).split("/")),
        items=count_in_index(entry["chunk_size"]),
        bytes=count_in_index(entry["chunk_bytes"]),
        tokens=None if entry.get("dim") is None else count_in_index(entry["dim"]),
    )
