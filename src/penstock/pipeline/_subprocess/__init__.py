"""A whole pipeline in a process of its own."""

from penstock.pipeline._subprocess._facade import SubprocessPipeline, run_in_subprocess

__all__ = ["SubprocessPipeline", "run_in_subprocess"]
