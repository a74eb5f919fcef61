"""Pipelines of stages that run in a background thread: sources, sync and async functions, batching, branches.

A pipeline is described by values (`PipelineConfig`, most easily made by `PipelineBuilder`) and run by a `Pipeline`. It
moves items of any kind, and is independent of datasets.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock.errors import PipelineFailure

if TYPE_CHECKING:
    from penstock.pipeline._builder import PipelineBuilder
    from penstock.pipeline._config import Merge, PipelineConfig, Source
    from penstock.pipeline._events import ItemDropped, ItemsDone, StageEnded, StageStarted
    from penstock.pipeline._items import SKIP, DroppedItem
    from penstock.pipeline._pipeline import Pipeline, build_pipeline
    from penstock.pipeline._processes import ProcessExecutor
    from penstock.pipeline._replay import replay
    from penstock.pipeline._stages import Aggregate, Aggregator, Disaggregate, PathVariants, Pipe, Sink, ThreadExecutor
    from penstock.pipeline._statistics import PipelineReport, StageReport
    from penstock.pipeline._subprocess import SubprocessPipeline, run_in_subprocess
else:
    # Imported on first use: `import penstock` should not load asyncio.
    __getattr__ = _lazy.from_modules(
        __name__,
        SKIP="penstock.pipeline._items",
        Aggregate="penstock.pipeline._stages",
        Aggregator="penstock.pipeline._stages",
        Disaggregate="penstock.pipeline._stages",
        DroppedItem="penstock.pipeline._items",
        ItemDropped="penstock.pipeline._events",
        ItemsDone="penstock.pipeline._events",
        Merge="penstock.pipeline._config",
        PathVariants="penstock.pipeline._stages",
        Pipe="penstock.pipeline._stages",
        Pipeline="penstock.pipeline._pipeline",
        PipelineBuilder="penstock.pipeline._builder",
        PipelineConfig="penstock.pipeline._config",
        PipelineReport="penstock.pipeline._statistics",
        ProcessExecutor="penstock.pipeline._processes",
        Sink="penstock.pipeline._stages",
        Source="penstock.pipeline._config",
        StageEnded="penstock.pipeline._events",
        StageReport="penstock.pipeline._statistics",
        StageStarted="penstock.pipeline._events",
        SubprocessPipeline="penstock.pipeline._subprocess",
        ThreadExecutor="penstock.pipeline._stages",
        build_pipeline="penstock.pipeline._pipeline",
        replay="penstock.pipeline._replay",
        run_in_subprocess="penstock.pipeline._subprocess",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = [
    "SKIP",
    "Aggregate",
    "Aggregator",
    "Disaggregate",
    "DroppedItem",
    "ItemDropped",
    "ItemsDone",
    "Merge",
    "PathVariants",
    "Pipe",
    "Pipeline",
    "PipelineBuilder",
    "PipelineConfig",
    "PipelineFailure",
    "PipelineReport",
    "ProcessExecutor",
    "Sink",
    "Source",
    "StageEnded",
    "StageReport",
    "StageStarted",
    "SubprocessPipeline",
    "ThreadExecutor",
    "build_pipeline",
    "replay",
    "run_in_subprocess",
]
