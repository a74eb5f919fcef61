"""Stages of pipelines that run in processes: a `ProcessExecutor` describes these, and `Executors` owns them."""

from penstock.pipeline._processes._chunks import load
from penstock.pipeline._processes._dispatcher import ProcessExecutor, RunningProcesses, open_processes
from penstock.pipeline._processes._remote import Executors, RemoteStage, explain_death

__all__ = ["Executors", "ProcessExecutor", "RemoteStage", "RunningProcesses", "explain_death", "load", "open_processes"]
