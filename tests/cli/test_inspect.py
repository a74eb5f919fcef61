"""`penstock inspect` shows the states in a file in words, and says which datasets they fit, or why they don't."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
from tests.cli.command import main

Output = pytest.CaptureFixture[str]


def is_odd(number: Any) -> bool:
    """Return whether a number is odd."""
    return bool(number % 2)


def train() -> ps.Dataset[Any]:
    """Return the dataset of the states."""
    return ps.range(1000, seed=7).shuffle().batch(8)


other = ps.range(1000, seed=8).shuffle().batch(8)
larger = ps.range(1000, seed=7).shuffle().batch(16)
in_order = ps.range(1000, seed=7).filter(is_odd).batch(8)
HERE = __name__


def state_of(dataset: ps.Dataset[Any], steps: int, **options: Any) -> dict[str, Any]:
    """Return the state after some steps."""
    with ps.Loader(dataset, **options) as loader:
        for _ in zip(range(steps), loader, strict=False):
            pass
        return loader.state_dict()


def test_a_state_is_shown_in_words_and_compared(tmp_path: Path, capsys: Output) -> None:
    """A dataset fits, one with other batches fits with a note, one with another order doesn't, and says which step."""
    (tmp_path / "state.json").write_text(json.dumps(state_of(train(), 40)))
    against = [f"--against={HERE}:{name}" for name in ("train", "larger", "other", "in_order")]
    assert main(["inspect", str(tmp_path / "state.json"), *against]) == 0
    text = capsys.readouterr().out
    for part in (
        "step 40, in epoch 0 from position 320 on",
        "8 rows over 1 rank, remainder='keep'",
        "has positions; all ranks have this state",
        state_of(train(), 0)["fingerprint"]["order"],
        f"fits        {HERE}:train\n",
        f"fits        {HERE}:larger; its batches have 16 rows",
        f"doesn't fit {HERE}:other: this state belongs to a dataset with another order: step",
        f"doesn't fit {HERE}:in_order: ",
    ):
        assert part in text
    assert main(["inspect", str(tmp_path / "state.json"), against[2]]) == 1


def test_states_are_found_in_a_checkpoint(tmp_path: Path, capsys: Output) -> None:
    """A checkpoint of torch holds them at any depth, as values or as text; each rank's own fits on that rank."""
    ranks = [state_of(in_order, 3, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
    path = tmp_path / "run.pt"
    torch.save({"model": {"w": torch.ones(3)}, "data": [json.dumps(ranks[0]), {"loader": ranks[1]}]}, path)
    assert main(["inspect", str(path), "--against", f"{HERE}:in_order"]) == 0
    text = capsys.readouterr().out
    for part in (f"{path}['data'][0]\n", f"{path}['data'][1]['loader']\n", "state of rank 0,", "state of rank 1,"):
        assert part in text
    assert text.count(f"fits        {HERE}:in_order\n") == 2


def test_a_file_without_a_state_is_refused(tmp_path: Path, capsys: Output) -> None:
    """The message says what the file is, with status 2; torch has many exceptions for one that is damaged."""
    damaged: list[bytes] = []
    for is_zip in (False, True):
        torch.save({"name": "caf\xe9"}, tmp_path / "run.pt", _use_new_zipfile_serialization=is_zip)
        data = (tmp_path / "run.pt").read_bytes()
        damaged += (data.replace(b"\xc3\xa9", b"\xff\xff"), data[: len(data) // 2])
    cases: list[tuple[bytes | None, str]] = [
        (None, "can't be read: No such file"),
        (b'{"step": 3}', "has no state of a loader"),
        (b'{"step": ', "begins as JSON and is none"),
        (b"[" * 100_000, "begins as JSON and is none"),
        (b"", "state.json is empty, as a program leaves it that is killed"),
        (b"no state", "state.json is neither JSON nor a checkpoint of torch: it begins with b'no state'"),
        (b"\x80\x02 no pickle", "state.json is neither JSON nor a checkpoint of tensors and plain values"),
        (b'{"data": {"penstock": 99, "fingerprint": {}}}', "state.json['data']: this version reads states of versions"),
        *((content, "state.json is neither JSON nor a checkpoint") for content in damaged),
    ]
    path = tmp_path / "state.json"
    for content, message in cases:
        if content is not None:
            path.write_bytes(content)
        assert main(["inspect", str(path)]) == 2
        text = capsys.readouterr().err
        assert message in text
        assert ("begins as JSON" in text) == ("begins as JSON" in message)
        assert "weights_only" not in text  # torch advises to run the code in the file


def test_a_checkpoint_that_runs_code_is_not_loaded(tmp_path: Path, capsys: Output) -> None:
    """A pickle that names a function is refused, and the function isn't called."""

    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    torch.save({"data": Touch()}, tmp_path / "run.pt")
    assert main(["inspect", str(tmp_path / "run.pt")]) == 2
    assert "json.dumps(loader.state_dict())" in capsys.readouterr().err
    assert not (tmp_path / "touched").exists()
