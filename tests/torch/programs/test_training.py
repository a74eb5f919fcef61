"""A training script that knows nothing of Penstock trains the same model with one import changed."""

from pathlib import Path

import numpy as np
import pytest

from tests.programs.forked import script_outcome

# Trains a small convolutional network once with each number of workers; FOLDER has one folder of images per class.
TRAINING = """
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Images(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*/*.png"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with Image.open(path) as image:
            pixels = np.asarray(image, np.float32) / 255
        return torch.from_numpy(pixels)[None], self.classes.index(path.parent.name)


def main(folder, num_workers):
    torch.manual_seed(7)
    torch.set_num_threads(1)
    images = Images(folder)
    train, test = random_split(images, [0.8, 0.2])
    train_loader = DataLoader(train, batch_size=16, shuffle=True, num_workers=num_workers, drop_last=True)
    test_loader = DataLoader(test, batch_size=64, num_workers=num_workers)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 64, len(images.classes))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        model.train()
        for pixels, labels in train_loader:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, loss.item().hex())
        model.eval()
        with torch.no_grad():
            right = sum((model(pixels).argmax(1) == labels).sum().item() for pixels, labels in test_loader)
        print(epoch, "right", right, "of", len(test))


if __name__ == "__main__":
    for given in sys.argv[2:]:
        main(sys.argv[1], int(given))
"""
THEIRS = "from torch.utils.data import DataLoader, Dataset, random_split"
OURS = "from penstock.torch import DataLoader\nfrom torch.utils.data import Dataset, random_split"
# In the same process, what the script prints with torch's loader, and a loader of our own kind of the script's objects.
# The program ends while a loader keeps its workers.
REST = """
    import runpy
    from operator import itemgetter
    import penstock as ps

    sys.argv[2:] = ["0"]
    runpy.run_path(str(Path(__file__).with_name("script.py")), run_name="__main__")
    with ps.Loader(ps.read(Images(sys.argv[1])).map(itemgetter(1)).batch(5), workers="processes") as loader:
        print([batch.tolist() for batch in loader])
    kept = DataLoader(range(8), num_workers=1, persistent_workers=True)
    next(batches := iter(kept))
    sys.exit()
"""


@pytest.mark.usefixtures("forked_programs")
def test_the_same_losses(tmp_path: Path) -> None:
    """To the last bit, in this process and with two workers: here only torch's own loader draws, and the model.

    Workers import a script's objects that cloudpickle can't copy, as with a name of torch's module `classes`.
    """
    image_module = pytest.importorskip("PIL.Image")
    for number in range(80):
        path = tmp_path / f"{number % 4}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = (np.arange(64) * (1 + number % 4) * 11 + number).astype(np.uint8)
        image_module.fromarray(pixels.reshape(8, 8)).save(path)
    assert TRAINING.count(THEIRS) == 1
    (tmp_path / "script.py").write_text(TRAINING)
    changed = tmp_path / "changed.py"
    changed.write_text(TRAINING.replace(THEIRS, OURS) + REST)
    ended = script_outcome(changed, str(tmp_path), "0", "2")
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, labels = ended.stdout.splitlines()
    expected = lines[20:]
    assert len(set(expected)) == len(expected) == 2 * (64 // 16 + 1)
    assert lines == 3 * expected
    assert labels == str([[label] * 5 for label in range(4) for _ in range(4)])
