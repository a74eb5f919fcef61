"""The plan of a loader: the program of a dataset, its place and workers, ranks and limits, as plain data."""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock._plan._plan import Limits as Limits
from penstock._plan._plan import Place as Place
from penstock._plan._plan import Plan as Plan
from penstock._plan._plan import Shard as Shard
from penstock._plan._plan import StartMethod as StartMethod

if TYPE_CHECKING:
    from penstock._plan._explain import Explanation as Explanation
    from penstock._plan._explain import explain as explain
    from penstock._plan._lower import check_pool as check_pool
    from penstock._plan._lower import check_threads as check_threads
    from penstock._plan._lower import choose_place as choose_place
    from penstock._plan._lower import lower as lower
    from penstock._plan._lower import parse_memory as parse_memory
    from penstock._plan._lower import share_place as share_place
    from penstock._plan._program import Batches as Batches
    from penstock._plan._program import Streaming as Streaming
else:
    # They import modules that describing a dataset doesn't need.
    __getattr__ = _lazy.from_modules(
        __name__,
        Batches="penstock._plan._program",
        Explanation="penstock._plan._explain",
        Streaming="penstock._plan._program",
        check_pool="penstock._plan._lower",
        check_threads="penstock._plan._lower",
        choose_place="penstock._plan._lower",
        explain="penstock._plan._explain",
        lower="penstock._plan._lower",
        parse_memory="penstock._plan._lower",
        share_place="penstock._plan._lower",
    )
