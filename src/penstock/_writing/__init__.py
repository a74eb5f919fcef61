"""Datasets written to files, shard by shard; each shard is a pure function of its number.

The problem: a conversion runs for hours and is killed, and starts again; several hosts share it, and disagree. The
solution: shard s has the elements at positions [s * rows, (s + 1) * rows), and its bytes follow from these, so any
worker on any host may write it, any number of times, to the same bytes. Writing is itself a dataset, whose element at
position s is the written shard s, and a loader computes it: its workers, its recovery from crashes and its errors are
those of any other loader. `write_by` takes another function that writes shards, as `penstock.ray` has one.

A shard is written under another name and renamed when it is whole (`_drafts.py`), so a shard that exists is complete,
and a run resumes by looking. `description.json` is written first, and refuses another dataset in the same folder;
`manifest.json`, with the checksums, is written last: a folder that has it is complete.

Rejected: a coordinator of parts (nothing needs to be agreed on), a log of progress (the files are the log), and formats
of our own (`_formats.py` has those of others, which others read).
"""

from penstock._writing._drafts import remove_leftovers as remove_leftovers
from penstock._writing._write import Entry as Entry
from penstock._writing._write import Shards as Shards
from penstock._writing._write import Written as Written
from penstock._writing._write import write as write
from penstock._writing._write import write_by as write_by
