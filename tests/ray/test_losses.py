"""Hosts that are lost change no batch, delay few, and leave nothing behind."""

from typing import Any

import pytest

from tests.profiles import IS_LONG
from tests.promptness import is_prompt
from tests.ray.losses import report, run

LOSSES = 100 if IS_LONG else 4
PAUSE_SECONDS = 0.5  # while others compute what a lost host had


@pytest.mark.longer
def test_lost_hosts_delay_few_batches(cluster: Any) -> None:
    """Hosts are killed and stopped by turns; the batches are those of the description, without a long wait."""
    result = run(cluster, LOSSES)
    text = "\n".join(report(result))
    assert not result.left, text
    assert all(is_prompt(pause.seconds, PAUSE_SECONDS) for pause in result.pauses), text
