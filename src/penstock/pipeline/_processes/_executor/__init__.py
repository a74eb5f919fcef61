"""Stages that run in processes."""

from penstock.pipeline._processes._executor._remote import Executors, RemoteStage, explain_death
from penstock.pipeline._processes._executor._running import ProcessExecutor, RunningProcesses, open_processes

__all__ = ["Executors", "ProcessExecutor", "RemoteStage", "RunningProcesses", "explain_death", "open_processes"]
