"""The constants that tune a pipeline, and the reason for each.

Moving one item between a thread and the event loop takes a few microseconds, far more than a cheap function. So items
move in chunks. A chunk is measured in time, not in items, because only the time says how long an item waits for the
rest of its chunk. The numbers trade two costs: a longer chunk delays its first item, a shorter one spends a larger part
of its time on switching threads. None of them changes a result; `max_items` and `max_bytes` of a stage replace the
limits of its channel.

- `CHUNK_SECONDS`: a switch between threads takes a few microseconds, below 1 % of it, and no training step notices the
  delay.
- `EXECUTOR_CHUNK_SECONDS`: as above; sending to an executor, often another process, costs more than a switch.
- `FUSED_SECONDS`: functions that together take less per item gain more from sharing a call than from running at the
  same time.
- `SLOW_CALL_SECONDS`: twice a chunk's time. A call that takes longer was misjudged; from then on it delivers each value
  at once.
- `SLOW_CHUNK_SECONDS`: the same for a call in an executor, which then returns after its current item.
- `SLOW_ITEM_SECONDS`: waking the loop costs less than such an item, so the reader wakes it for each.
- `MIN_ITEMS`, `MAX_ITEMS`: a channel has room for an item and the end of a pass at least. More than 1,024 items per
  chunk gain nothing.
- `MAX_CHANNEL_BYTES`: a channel that holds large items holds fewer of them, about so many bytes.
- `MAX_ATTEMPTS`: how often a repeatable generator is started, if its process dies each time.
- `MIN_RATE_ITEMS`: a rate of failures is too uncertain with fewer items.
- `MAX_LISTED`: dropped items that are kept for `Pipeline.dropped`.
- `ERROR_STOP_SECONDS`: how long `auto_stop` waits for the stages before it raises the error of its block.
- `EXIT_SECONDS`: how long the end of the program waits for the stages.
- `LONGEST_WAIT_SECONDS`: the longest timeout, since the system counts its milliseconds in 31 bits.
"""

from typing import Final

CHUNK_SECONDS: Final = 0.001
EXECUTOR_CHUNK_SECONDS: Final = 0.002
FUSED_SECONDS: Final = 0.0001
SLOW_CALL_SECONDS: Final = 0.002
SLOW_CHUNK_SECONDS: Final = 0.004
SLOW_ITEM_SECONDS: Final = 0.0001
MIN_ITEMS: Final = 2
MAX_ITEMS: Final = 1024
MAX_CHANNEL_BYTES: Final = 16 << 20
MAX_ATTEMPTS: Final = 3
MIN_RATE_ITEMS: Final = 100
MAX_LISTED: Final = 1_000
ERROR_STOP_SECONDS: Final = 2.0
EXIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 2e6


def chunk_size(seconds: float, item_seconds: float) -> int:
    """Return how many items make a chunk of `seconds`, if an item takes `item_seconds`.

    Returns:
        From 1 to `MAX_ITEMS`; 1 as long as the time of an item is unknown, which is 0.
    """
    return min(max(int(seconds / max(item_seconds, 1e-9)), 1), MAX_ITEMS) if item_seconds else 1


def wait_limit(timeout: float | None) -> float | None:
    """Return a timeout as seconds that the system can count, also if it is infinite; None for None."""
    return None if timeout is None else min(max(timeout, 0.0), LONGEST_WAIT_SECONDS)
