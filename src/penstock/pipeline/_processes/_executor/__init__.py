"""Stages that run in processes."""

from penstock.pipeline._processes._executor._chunks import ChunkCall, Outcome, run_chunk
from penstock.pipeline._processes._executor._running import ProcessExecutor, RunningProcesses, open_processes
from penstock.pipeline._processes._executor._submit import explain_death, run_in_process, submit_chunk

__all__ = [
    "ChunkCall",
    "Outcome",
    "ProcessExecutor",
    "RunningProcesses",
    "explain_death",
    "open_processes",
    "run_chunk",
    "run_in_process",
    "submit_chunk",
]
