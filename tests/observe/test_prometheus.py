"""`penstock.observe.prometheus` writes figures of several loaders in the text format of Prometheus."""

import re

import penstock as ps
from penstock.observe import Report, StepReport, prometheus


class Fixed:
    """Has a fixed report."""

    def report(self) -> Report:
        """Return the report."""
        steps = (StepReport('a "b"\\\n', "map(a)", 0.5, 1.0),)
        return Report(steps, batches=8, elapsed_seconds=4.0, wait_seconds=1.0, waits=(("workers", 0.75),), workers=2)


def test_each_metric_has_a_sample_of_each_loader() -> None:
    """Samples of one metric are together, below its help and type; labels are escaped."""
    with ps.Loader(ps.range(64).batch(8)) as loader:
        batches = list(loader)
        text = prometheus({"train": Fixed(), "eval": loader})
    assert text.startswith(
        "# HELP penstock_batches_total Batches delivered.\n"
        "# TYPE penstock_batches_total counter\n"
        'penstock_batches_total{loader="train"} 8.0\n'
        f'penstock_batches_total{{loader="eval"}} {float(len(batches))}\n'
    )
    assert 'penstock_wait_cause_seconds_total{loader="train",cause="workers"} 0.75\n' in text
    assert 'penstock_step_seconds{loader="train",step="a \\"b\\"\\\\\\n"} 0.5\n' in text
    assert 'penstock_workers_busy_ratio{loader="eval"} 0.0\n' in text
    names = re.findall(r"^# TYPE (\w+) (?:counter|gauge)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == text.count("# HELP")
    sample = r'\w+\{loader="\w+"(?:,\w+="(?:[^"\\\n]|\\.)*")?\} [0-9.e+-]+'
    assert all(line.startswith("#") or re.fullmatch(sample, line) for line in text.splitlines())


def test_no_loader_gives_an_empty_page() -> None:
    """Without loaders there is no metric."""
    assert prometheus({}) == ""
