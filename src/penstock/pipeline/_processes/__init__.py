"""Stages, and whole pipelines, in processes of their own."""

from penstock.pipeline._processes._executor import (
    ChunkCall,
    Outcome,
    ProcessExecutor,
    RunningProcesses,
    explain_death,
    open_processes,
    run_chunk,
    run_in_process,
    submit_chunk,
)

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
