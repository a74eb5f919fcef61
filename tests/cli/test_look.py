"""`Loader.look` and `penstock look` show what the model saw at any step, and where two descriptions differ."""

import base64
import io
import os
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
import wave
import zlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import penstock as ps
from penstock._cli.look_server import LookServer
from penstock.errors import StateError
from penstock.observe import Look
from tests.cli.command import Screen, main
from tests.places import in_places

Output = pytest.CaptureFixture[str]
HERE = __name__


def element(number: int) -> dict[str, Any]:
    """Return an element with leaves of every kind."""
    image = np.full((4, 6, 3), number, np.uint8)
    return {
        "image": image,
        "planes": np.moveaxis(image, 2, 0) / 255,
        "mask": image[:, :, 0] > 2,
        "ids": np.arange(number, number + 9),
        "text": f"<b>{number}</b>\x1b[31m",
        "nested": {"half": number / 2},
    }


train = ps.range(40, seed=7).shuffle().map(element).batch(4)
changed = ps.range(40, seed=7).shuffle().map(lambda number: element(number + (number == 13))).batch(4)
in_order = ps.range(40, seed=7).shuffle().filter(lambda number: number % 2).map(element).batch(4)
single = ps.range(4)
SCALES = {"scales": np.array([1, 2, 3])}


def loader() -> ps.Loader[Any]:
    """Return a loader."""
    return ps.Loader(train)


def turned(text: str, rng: Any) -> str:
    """Return the text with a letter that is drawn."""
    return text + "abcdef"[rng.integers(6)]


def listed(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return lists of the rows' leaves."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def join(ids: list[int]) -> str:
    """Return the text of some integers."""
    return "-".join(map(str, ids))


Shown = Callable[..., str]


@pytest.fixture
def shown(capsys: Output) -> Shown:
    """Return a function that runs the command with a dataset of this module, and returns what it prints."""

    def run(name: str, *options: str, status: int = 0) -> str:
        assert main(["look", f"{HERE}:{name}", *options]) == status
        printed = capsys.readouterr()
        return printed.err if status == 2 else printed.out

    return run


@in_places("inline", "threads")
def test_any_step_is_shown_with_the_record_of_each_row(place: dict[str, Any]) -> None:
    """The rows are those that training gets, also of later epochs; the loader's own state doesn't change."""
    with ps.Loader(train, **place) as loader:
        look = loader.look(12, decode=join)
        numbers = [origin.key for origin in loader.origins(12)]
        assert loader.steps_done == 0
    title, _, *lines = str(look).splitlines()
    assert title == "step 12, epoch 1: 4 rows"
    assert [line for line in lines if line.startswith("row")] == [
        f"row {row}, key {number}, epoch 1, position {8 + row}" for row, number in enumerate(numbers)
    ]
    number = numbers[0]
    assert lines[1:8] == [
        f"  ['image']           uint8 of shape (4, 6, 3), {number} to {number}",
        f"  ['planes']          float64 of shape (3, 4, 6), {number / 255:.4g} to {number / 255:.4g}",
        f"  ['mask']            bool of shape (4, 6), {24 * (number > 2)} of 24 true",
        f"  ['ids']             {join(list(range(number, number + 9)))}",
        f"  ['text']            <b>{number}</b>�[31m",
        f"  ['nested']['half']  {number / 2}",
        f"row 1, key {numbers[1]}, epoch 1, position 9",
    ]


def test_a_page_has_the_pictures_and_escapes_texts(tmp_path: Path) -> None:
    """The page has an image of each picture and mask, with its pixels, and no markup of the data's.

    Names of files that are not UTF-8 have lone surrogates, which no page can hold: each is shown as a question mark.
    """
    look = ps.Loader(train).look(3)
    html = look.html(tmp_path / "page.html")
    assert html in (tmp_path / "page.html").read_text()
    assert "<b>" not in html
    images = re.findall(r"data:image/png;base64,([^\"]+)", html)
    assert len(images) == 4 * 3
    data = base64.b64decode(images[0])
    assert struct.unpack(">II", data[16:24]) == (6, 4)
    pixels = zlib.decompress(data[data.index(b"IDAT") + 4 : -16])
    assert pixels == (b"\0" + bytes([look.origins[0].key]) * 18) * 4
    with ps.Loader(ps.read([{"path": os.fsdecode(b"caf\xe9.txt")}])) as loader:
        html = loader.look(0).html(tmp_path / "page.html")
    assert "caf?.txt" in html
    assert html in (tmp_path / "page.html").read_text()


def recording(number: int) -> dict[str, Any]:
    """Return samples with their rate, as the datasets of Hugging Face have them, and a file."""
    samples = np.sin(np.arange(800) * (number + 1) / 20).astype(np.float32)
    return {"audio": {"array": samples, "sampling_rate": 8000}, "file": b"fLaC" + bytes(number), "other": samples}


def test_a_page_plays_sounds() -> None:
    """Samples with a rate become WAV, which Python's own module reads back; encoded sounds are as they are."""
    page = ps.Loader(ps.range(4).map(recording).batch(2)).look(1).html()
    sounds = re.findall(r'<audio controls src="data:audio/(\w+);base64,([^"]+)"></audio>', page)
    assert [kind for kind, _ in sounds] == ["wav", "flac"] * 2
    with wave.open(io.BytesIO(base64.b64decode(sounds[0][1]))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getnframes()) == (8000, 1, 800)
        samples = np.frombuffer(sound.readframes(800), "<i2")
    assert np.allclose(samples / 32767, recording(2)["audio"]["array"], atol=1e-4)
    assert base64.b64decode(sounds[1][1]) == recording(2)["file"]
    assert "FLAC, 6 bytes" in page


def test_a_terminal_with_colours_shows_pictures() -> None:
    """A picture is drawn by half blocks in the colours of its pixels, and no line is wider than the terminal."""
    look = ps.Loader(train).look(3)
    shade = look.origins[0].key
    codes: dict[Literal["true", "256"], str] = {
        "true": f"2;{shade};{shade};{shade}",
        "256": f"5;{16 + 43 * round(shade / 51)}",
    }
    for colours, code in codes.items():
        lines = look.text(columns=40, colours=colours, rows=1).splitlines()
        pictures = [line for line in lines if "▀" in line]
        assert pictures[0] == "    " + f"\x1b[38;{code};48;{code}m▀" * 6 + "\x1b[0m"
        assert len(pictures) == 2 * 3
        assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 40
        assert lines[-1] == "… 3 more rows"


def test_the_command_draws_pictures_in_colour_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, `penstock look` draws pictures by colours; with NO_COLOR it prints the same texts, and none."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(r"\x1b\[[0-9;]*m")
    found: list[str] = []
    for _ in range(2):
        monkeypatch.setattr("sys.stdout", screen := Screen())
        assert main(["look", f"{HERE}:train", "--step", "3"]) == 0
        found.append(screen.getvalue())
        monkeypatch.setenv("NO_COLOR", "1")
    drawn, plain = found
    assert colour.search(drawn)
    assert "▀" in drawn
    assert not colour.search(plain)
    assert plain.splitlines() == [line for line in drawn.splitlines() if "▀" not in line]


def test_rows_of_padding_and_elements_without_batches_are_shown() -> None:
    """Padding has no record; a dataset without a batch has one row; a decoder's own error passes with its place."""
    padding = [line for row in (1, 2, 3) for line in (f"row {row}, padding", "  4")]
    padded = ps.Loader(ps.range(5).batch(4, remainder="pad")).look(1)
    assert str(padded).splitlines()[2:] == ["row 0, key 4, epoch 0, position 4", "  4", *padding]
    scaled = ps.range(5).map(lambda number: {"n": number}).batch(4, remainder="pad").map(lambda batch: batch | SCALES)
    assert str(ps.Loader(scaled).look(1)).splitlines()[-2:] == ["the batch as a whole", "  ['scales']  [1, 2, 3]"]
    assert "row 3, padding\n  ['n']" in str(ps.Loader(scaled).look(1))
    assert str(ps.Loader(single).look(2)) == "step 2, epoch 0\n\nkey 2, epoch 0, position 2\n  2"
    ragged = ps.Loader(
        ps.range(4).map(lambda number: {"a": str(number), "b": np.arange(number)}).batch(2, merge=listed)
    )
    assert str(ragged.look(1)).endswith("position 3\n  ['a']  3\n  ['b']  [0, 1, 2]")
    with pytest.raises(ValueError, match="chr") as raised:
        str(ps.Loader(train).look(0, decode=lambda ids: "".join(map(chr, [*ids, -1]))))
    assert "while decoding ['ids'] of row 0, key" in raised.value.__notes__[0]


def test_the_command_shows_steps_and_compares_them(shown: Shown, tmp_path: Path, capsys: Output) -> None:
    """It takes datasets, loaders and files, reads up to a step where it must, and names what two steps share."""
    text = shown("loader", "--step", "12", "--decode", f"{HERE}:join", "--rows", "1")
    assert text.startswith("step 12, epoch 1: 4 rows\n\nrow 0, key ")
    assert text.endswith("… 3 more rows\n\n")
    keys = re.findall(r"^row \d, key (\d+), epoch 1", shown("in_order", "--step", "7"), re.MULTILINE)
    with ps.Loader(in_order) as expected:
        batches = [batch for _ in range(2) for batch in expected]
    assert list(map(int, keys)) == batches[7]["ids"][:, 0].tolist()
    text = shown("train", "--rank", "1/2", "--compare-steps", "2", "14")
    assert "step 2, epoch 0: 2 rows" in text
    assert "step 14, epoch 1: 2 rows" in text
    assert re.search(r"^records in both: \d", text, re.MULTILINE)
    assert "the first difference: row 0 of ['image']: 72 of 72 values differ" in text
    (tmp_path / "data.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    assert main(["look", str(tmp_path / "data.jsonl"), "--step", "1"]) == 0
    text = capsys.readouterr().out
    assert "['text']  second" in text
    assert "data.jsonl" in text


@in_places("inline", "threads")
def test_a_row_is_shown_after_each_step(place: dict[str, Any], tmp_path: Path, shown: Shown) -> None:
    """The last element is the row of the batch; the record is the first. Steps that choose positions have no line."""
    dataset = ps.range(40, seed=7).shuffle().map(str, name="text").random_map(turned).batch(4)
    with ps.Loader(dataset, **place) as loader:
        look = loader.look(12, row=2)
        (key,) = (origin.key for origin in look.origins)
        final = loader.batch_at(12)[2]
        with pytest.raises(IndexError):
            loader.look(12, row=4)
    title, _, *lines = str(look).splitlines()
    assert title == f"step 12, row 2, key {key}, epoch 1, position 10"
    assert lines == [
        *("after read(Range(0, 40, 1))", f"  {key}"),
        *("after map(text)", f"  {key}"),
        *("after random_map(turned)", f"  {final}"),
    ]
    assert look.batch == final
    shown("train", "--step", "12", "--row", "1", "--html", str(tmp_path / "row.html"))
    assert (tmp_path / "row.html").read_text().count("<th>after ") == 2


@contextmanager
def served(look: Callable[[int], Look], first: int = 0) -> Generator[LookServer]:
    """Serve pages of steps; wait for the threads that answer."""
    before = set(threading.enumerate())
    with LookServer(look, 0, first) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            for started in set(threading.enumerate()) - before:
                started.join()


def test_steps_are_served_to_this_machine_alone(capsys: Output) -> None:
    """Each step has a page; an error of the dataset is shown in it, and other names of the machine are refused."""
    with ps.Loader(train) as loader, served(loader.look, first=3) as server:
        assert b"step 3, epoch 0: 4 rows" in fetched(server.address)
        page = fetched(f"{server.address}?step=12")
        assert b"step 12, epoch 1: 4 rows" in page
        assert b"?step=11" in page
        assert b"?step=13" in page
        for wrong in (f"{server.address}?step=x", f"{server.address}?step={'9' * 5000}", f"{server.address}etc/passwd"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                fetched(wrong)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(urllib.request.Request(server.address, headers={"Host": "example.org"}))
        through_proxy = urllib.request.Request(f"{server.address}?step=12")
        through_proxy.set_proxy(server.address.split("/")[2], "http")  # then the request has the whole address
        assert fetched(through_proxy) == page
        for wrong in ("http://[bad/", "http://example.org/"):
            with socket.create_connection(("127.0.0.1", server.server_port)) as other:
                other.sendall(f"GET {wrong} HTTP/1.0\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
                assert b"404" in other.recv(1000)
    assert capsys.readouterr() == ("", "")
    with ps.Loader(in_order) as loader, LookServer(loader.look, 0, first=0) as server:
        assert "StateError" in server.page(10**6)


def test_idle_and_lost_connections_disturb_no_other_one(capsys: Output) -> None:
    """A connection without a request, as browsers open them, delays nobody; one that is reset prints nothing."""
    was_asked, is_reset = threading.Event(), threading.Event()

    def look(step: int) -> Look:
        was_asked.set()
        is_reset.wait()
        return source.look(step)

    with ps.Loader(train) as source, served(look) as server, ExitStack() as connections:
        _, lost = (
            connections.enter_context(socket.create_connection(("127.0.0.1", server.server_port))) for _ in range(2)
        )
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lost.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
        was_asked.wait()
        lost.close()
        is_reset.set()
        assert b"step 2, epoch 0" in fetched(f"{server.address}?step=2")
        connections.close()
    assert capsys.readouterr() == ("", "")


def fetched(address: str | urllib.request.Request) -> bytes:
    """Return the content at an address of this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=20) as answer:
        content: bytes = answer.read()
        return content


def test_the_first_difference_of_two_descriptions_is_found(tmp_path: Path, shown: Shown) -> None:
    """Two descriptions that differ in one record are equal up to its step; the status says whether they differ."""
    with ps.Loader(train) as loader:
        origins = [(step, row, origin.key) for step in range(10) for row, origin in enumerate(loader.origins(step))]
    ((step, row),) = [(step, row) for step, row, key in origins if key == 13]
    page = tmp_path / "page.html"
    against = ("--against", f"{HERE}:changed")
    expected = f"{HERE}:train and {HERE}:changed first differ at step {step}: row {row} of ['image']: 72 of 72 values"
    assert shown("train", *against, "--html", str(page), status=1).startswith(expected)
    assert page.read_text().count('class="penstock-look"') == 2
    assert "are equal" in shown("train", *against, "--steps", f"0:{step}")
    with ps.Loader(in_order) as loader, pytest.raises(StateError):
        loader.look(7)


@pytest.mark.parametrize(("last", "found"), [(7, ""), (8, "row 2 of the element: 1000007 and 1000008")])
def test_arrays_of_objects_are_compared_by_value(last: int, found: str) -> None:
    """Equal objects are equal, wherever they are in memory, also arrays among them."""

    def of_objects(last: int) -> ps.Loader[Any]:
        def merge(rows: list[int]) -> Any:
            return np.array([np.arange(3), "text", 1_000_000 + last, *rows], object)

        return ps.Loader(ps.range(1).batch(1, merge=merge))

    with of_objects(7) as one, of_objects(last) as two:
        assert one.look(0).difference(two.look(0)) == found


def test_wrong_arguments_are_refused(shown: Shown) -> None:
    """The message has the rule; the status is 2."""
    for arguments, message in (
        ("HERE", "must be a dataset or a loader"),
        ("train --steps 0:3", "--steps is for --against"),
        ("loader --rank 0/2", "is a loader, which has a rank of its own"),
        (f"train --decode {HERE}:HERE", "--decode must name a function"),
        ("train --row 4", "--row: "),
        ("in_order --row 0", "this dataset is read in order"),
        (f"train --row 0 --against {HERE}:changed", "--row shows one step, and --against compares two"),
    ):
        assert message in shown(*arguments.split(), status=2)
