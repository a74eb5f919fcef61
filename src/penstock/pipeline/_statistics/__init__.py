"""Statistics of a running pipeline: the counters of each stage, the report made of them, and the advice in it."""

from penstock._durations import Durations
from penstock.pipeline._statistics._probe import Probe, Probes, StageProbe
from penstock.pipeline._statistics._report import PipelineReport
from penstock.pipeline._statistics._stage_report import StageReport

__all__ = ["Durations", "PipelineReport", "Probe", "Probes", "StageProbe", "StageReport"]
