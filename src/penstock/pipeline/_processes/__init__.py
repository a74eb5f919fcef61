"""Processes of ours, and stages that run in processes."""

from penstock.pipeline._processes._executor import (
    Executors,
    ProcessExecutor,
    RemoteStage,
    RunningProcesses,
    explain_death,
    open_processes,
)

__all__ = ["Executors", "ProcessExecutor", "RemoteStage", "RunningProcesses", "explain_death", "open_processes"]
