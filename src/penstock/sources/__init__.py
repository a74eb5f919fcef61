"""Sources of records: any object with `__len__` and `__getitem__`, and the sources of Penstock.

`Arrays` (a dict of arrays, or one), `Files` and `ImageFolder` (a folder), `Tokens` (token files, as windows or
documents), `JsonLines` and `Range` are sources; `Source` defines the methods of all others. Datasets use a source
through the functions: `read_records` and `describe_key` for keys, the others once.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock.sources._arrays import Arrays as Arrays
from penstock.sources._as_source import as_source as as_source
from penstock.sources._as_source import can_read_into as can_read_into
from penstock.sources._as_source import check_length as check_length
from penstock.sources._as_source import describe_key as describe_key
from penstock.sources._as_source import source_fingerprint as source_fingerprint
from penstock.sources._as_source import source_length as source_length
from penstock.sources._range import Range as Range
from penstock.sources._reading import read_records as read_records
from penstock.sources._source import Source as Source

if TYPE_CHECKING:
    from penstock.sources._files import Files as Files
    from penstock.sources._files import ImageFolder as ImageFolder
    from penstock.sources._json_lines import JsonLines as JsonLines
    from penstock.sources._tokens import Tokens as Tokens
else:
    # Loaded on demand: a program uses few of these.
    __getattr__ = _lazy.from_modules(
        __name__,
        Files="penstock.sources._files",
        ImageFolder="penstock.sources._files",
        JsonLines="penstock.sources._json_lines",
        Tokens="penstock.sources._tokens",
    )

__all__ = [
    "Arrays",
    "Files",
    "ImageFolder",
    "JsonLines",
    "Range",
    "Source",
    "Tokens",
    "as_source",
    "can_read_into",
    "check_length",
    "describe_key",
    "read_records",
    "source_fingerprint",
    "source_length",
]
