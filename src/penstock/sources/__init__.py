"""Sources of records: any object with `__len__` and `__getitem__`, and the sources of Penstock.

`Arrays` (one array, or a dict of them), `Parquet` and `Arrow` (tables in files), `Files` and `ImageFolder` (a folder),
`Tokens` and `Megatron` (token files, as windows or documents), `JsonLines`, `Csv`, `Sqlite`, `Tar` (samples of
WebDataset), `TFRecord`, `ArrayRecord`, `MDS` (shards of Streaming), `LitData`, `Lance`, `LeRobot`, `Zarr` and `Range`
are sources; `Source` has the methods of any other. Datasets use a source through the functions here: for keys
`read_records` and `describe_key`, and the others once.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock.sources._arrays import Arrays as Arrays
from penstock.sources._as_source import AwaitedSource as AwaitedSource
from penstock.sources._as_source import as_source as as_source
from penstock.sources._as_source import can_read_into as can_read_into
from penstock.sources._as_source import can_read_spans as can_read_spans
from penstock.sources._as_source import check_length as check_length
from penstock.sources._as_source import content_digest as content_digest
from penstock.sources._as_source import describe_key as describe_key
from penstock.sources._as_source import source_fingerprint as source_fingerprint
from penstock.sources._as_source import source_length as source_length
from penstock.sources._mapped import find_mapped as find_mapped
from penstock.sources._mapped import map_file as map_file
from penstock.sources._range import Range as Range
from penstock.sources._reading import RETRY_WAITS_SECONDS as RETRY_WAITS_SECONDS
from penstock.sources._reading import checked as checked
from penstock.sources._reading import fill_rows as fill_rows
from penstock.sources._reading import fills_packed as fills_packed
from penstock.sources._reading import is_read_singly as is_read_singly
from penstock.sources._reading import is_transient as is_transient
from penstock.sources._reading import read_record as read_record
from penstock.sources._reading import read_records as read_records
from penstock.sources._reading import read_spans as read_spans
from penstock.sources._source import BlockSource as BlockSource
from penstock.sources._source import Keys as Keys
from penstock.sources._source import Record as Record
from penstock.sources._source import Source as Source
from penstock.sources._source import name_of as name_of

if TYPE_CHECKING:
    from penstock.sources._array_record import ArrayRecord as ArrayRecord
    from penstock.sources._arrow import Arrow as Arrow
    from penstock.sources._bagz import Bagz as Bagz
    from penstock.sources._csv import Csv as Csv
    from penstock.sources._files import Files as Files
    from penstock.sources._files import ImageFolder as ImageFolder
    from penstock.sources._files import ImageRecord as ImageRecord
    from penstock.sources._hdf5 import HDF5 as HDF5
    from penstock.sources._json_lines import JsonLines as JsonLines
    from penstock.sources._lance import Lance as Lance
    from penstock.sources._lerobot import LeRobot as LeRobot
    from penstock.sources._litdata import LitData as LitData
    from penstock.sources._lmdb import Lmdb as Lmdb
    from penstock.sources._local_files import indexing_beside as indexing_beside
    from penstock.sources._mds import MDS as MDS
    from penstock.sources._megatron import Megatron as Megatron
    from penstock.sources._parquet import Parquet as Parquet
    from penstock.sources._source_loop import Call as Call
    from penstock.sources._source_loop import Outcome as Outcome
    from penstock.sources._sqlite import Sqlite as Sqlite
    from penstock.sources._stateful import begin_pass as begin_pass
    from penstock.sources._stateful import forget_state as forget_state
    from penstock.sources._stateful import forgets as forgets
    from penstock.sources._stateful import from_beginning as from_beginning
    from penstock.sources._stateful import has_state_dict as has_state_dict
    from penstock.sources._stateful import load_state as load_state
    from penstock.sources._stateful import state_methods as state_methods
    from penstock.sources._tar import Tar as Tar
    from penstock.sources._tf_record import TFRecord as TFRecord
    from penstock.sources._tokens import Tokens as Tokens
    from penstock.sources._zarr import Zarr as Zarr
else:
    # Loaded on demand: a program uses few of these.
    __getattr__ = _lazy.from_modules(
        __name__,
        ArrayRecord="penstock.sources._array_record",
        Arrow="penstock.sources._arrow",
        Bagz="penstock.sources._bagz",
        Csv="penstock.sources._csv",
        Files="penstock.sources._files",
        ImageFolder="penstock.sources._files",
        ImageRecord="penstock.sources._files",
        HDF5="penstock.sources._hdf5",
        JsonLines="penstock.sources._json_lines",
        Lance="penstock.sources._lance",
        LeRobot="penstock.sources._lerobot",
        LitData="penstock.sources._litdata",
        Lmdb="penstock.sources._lmdb",
        indexing_beside="penstock.sources._local_files",
        MDS="penstock.sources._mds",
        Megatron="penstock.sources._megatron",
        Parquet="penstock.sources._parquet",
        Call="penstock.sources._source_loop",
        Outcome="penstock.sources._source_loop",
        Sqlite="penstock.sources._sqlite",
        begin_pass="penstock.sources._stateful",
        forget_state="penstock.sources._stateful",
        forgets="penstock.sources._stateful",
        from_beginning="penstock.sources._stateful",
        has_state_dict="penstock.sources._stateful",
        load_state="penstock.sources._stateful",
        state_methods="penstock.sources._stateful",
        Tar="penstock.sources._tar",
        TFRecord="penstock.sources._tf_record",
        Tokens="penstock.sources._tokens",
        Zarr="penstock.sources._zarr",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = [
    "HDF5",
    "MDS",
    "ArrayRecord",
    "Arrays",
    "Arrow",
    "Bagz",
    "BlockSource",
    "Csv",
    "Files",
    "ImageFolder",
    "ImageRecord",
    "JsonLines",
    "Lance",
    "LeRobot",
    "LitData",
    "Lmdb",
    "Megatron",
    "Parquet",
    "Range",
    "Source",
    "Sqlite",
    "TFRecord",
    "Tar",
    "Tokens",
    "Zarr",
    "as_source",
    "can_read_into",
    "check_length",
    "describe_key",
    "read_records",
    "source_fingerprint",
    "source_length",
]
