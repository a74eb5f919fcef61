"""Running stages: the lanes that take items and call ops, the threads that ops run on, and each kind of op."""

from penstock.pipeline._operations._aggregate_stage import AggregateStage
from penstock.pipeline._operations._async_stage import AsyncGeneratorStage, AsyncStage
from penstock.pipeline._operations._executor_stage import ExecutorStage, Remote
from penstock.pipeline._operations._pulling import DisaggregateStage, GeneratorStage, RunningSource
from penstock.pipeline._operations._stage import RunningStage, StageSetup
from penstock.pipeline._operations._sync_stage import SyncStage
from penstock.pipeline._operations._threads import AnyThreads, ExecutorThreads, Threads
from penstock.pipeline._operations._wrapped_ops import AsyncRouter, Router, skipping_none

__all__ = [
    "AggregateStage",
    "AnyThreads",
    "AsyncGeneratorStage",
    "AsyncRouter",
    "AsyncStage",
    "DisaggregateStage",
    "ExecutorStage",
    "ExecutorThreads",
    "GeneratorStage",
    "Remote",
    "Router",
    "RunningSource",
    "RunningStage",
    "StageSetup",
    "SyncStage",
    "Threads",
    "skipping_none",
]
