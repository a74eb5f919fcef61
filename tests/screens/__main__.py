"""Writes the pictures of the documentation: commands in terminals of 80 and 40 columns, and pages, wide and narrow.

Each is what a user sees: `penstock watch` and `penstock look` run in tmux, and a headless Chromium draws the pages. It
needs both, and Pillow, which cuts the empty border off. `python -m tests.screens docs/images` writes the pictures.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops

import penstock as ps
from tests.screens import sample
from tests.screens.terminal import page_of

_SESSION: Final = "penstock-screens"
_ROWS: Final = 64
_WIDE: Final = 1_000  # pixels
_NARROW: Final = 400
_HEIGHT: Final = 1_200
_SHOWN_HEIGHT: Final = 640  # of a page, which may be longer
_MARGIN: Final = 12
_SETTLED_SECONDS: Final = 7.0  # of a view of the last 5 seconds
_STEPS: Final = 250
_pause: Final = threading.Event()  # never set


def main() -> int:
    """Write all pictures into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/images"))
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        pages = write_pages(Path(work))
        for path in pages:
            draw_wide_and_narrow(path, folder)
        module = f"{sample.__name__}:train"
        look = f"look {module} --step 12 --rows 2 --decode {sample.__name__}:words"
        text = shown(look, 80, 3.0)
        draw(written(Path(work, "look-80.html"), page_of(text, 80)), folder / "look-80.png")
        command = ["python", "-m", sample.__name__]
        with subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE, text=True) as training:
            assert training.stdout is not None
            training.stdout.readline()
            try:
                for columns in (80, 40):
                    text = shown(f"watch {training.pid}", columns, _SETTLED_SECONDS)
                    page = written(Path(work, f"watch-{columns}.html"), page_of(text, columns))
                    draw(page, folder / f"watch-{columns}.png")
            finally:
                training.kill()
    return 0


def write_pages(folder: Path) -> tuple[Path, Path]:
    """Write the pages of a report and of a look, and return their paths."""
    report, look = folder / "report.html", folder / "look.html"
    with ps.Loader(sample.train, num_workers=4, workers="threads") as loader:
        for step, _ in enumerate(loader):
            _pause.wait(0.01)
            if step == _STEPS:
                break
        loader.report().html(report)
        loader.look(12, decode=sample.words).html(look)
    return report, look


def shown(command: str, columns: int, seconds: float) -> str:
    """Return what a command of Penstock shows in a terminal after some seconds, with its colours."""
    run = f"COLORTERM=truecolor {sys.executable} -m penstock {command}; cat"
    size = ["-x", str(columns), "-y", str(_ROWS)]
    subprocess.run(["tmux", "new-session", "-d", "-s", _SESSION, *size, "sh", "-c", run], check=True)
    try:
        _pause.wait(seconds)
        capture = ["tmux", "capture-pane", "-e", "-p", "-t", _SESSION]
        text = subprocess.run(capture, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run(["tmux", "kill-session", "-t", _SESSION], check=True)
    return f"$ penstock {command}\n{text.rstrip()}\n"


def draw_wide_and_narrow(page: Path, folder: Path) -> None:
    """Draw a page in a window, and in one that is as narrow as a telephone's."""
    draw(page, folder / f"{page.stem}-wide.png", most_height=_SHOWN_HEIGHT)
    frame = f'<iframe src="{page.name}" style="width:{_NARROW}px;height:{_HEIGHT}px;border:0"></iframe>'
    narrow = written(page.with_name(f"narrow-{page.name}"), f"<!doctype html><style>*{{margin:0}}</style>{frame}")
    draw(narrow, folder / f"{page.stem}-narrow.png", most_height=_SHOWN_HEIGHT)


def draw(page: Path, picture: Path, *, most_height: int = _HEIGHT) -> None:
    """Write a picture of a page, without its empty border.

    Args:
        page: the page.
        picture: the file to write.
        most_height: the most pixels of the height that are shown.

    Raises:
        RuntimeError: the page is empty.
    """
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={_WIDE},{_HEIGHT}"]
    command = ["chromium", *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(picture) as drawn:
        image = drawn.convert("RGB")
    ground = Image.new("RGB", image.size, image.getpixel((_WIDE - 1, _HEIGHT - 1)))
    box = ImageChops.difference(image, ground).getbbox()
    if box is None:
        raise RuntimeError(f"{page} is empty")
    right, below = min(box[2] + _MARGIN, _WIDE), min(box[3] + _MARGIN, most_height)
    image.crop((0, 0, right, below)).quantize(colors=128).save(picture, optimize=True)


def written(path: Path, text: str) -> Path:
    """Write a page, and return its path."""
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
