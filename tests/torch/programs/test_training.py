"""A training script that knows nothing of Penstock trains the same model with one import changed."""

import subprocess
import sys
from pathlib import Path

from tests.examples.pictures import NEEDS_DIGITS, write_digits

pytestmark = NEEDS_DIGITS
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
    train_loader = DataLoader(train, batch_size=32, shuffle=True, num_workers=num_workers, drop_last=True)
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
        print("right", right, "of", len(test))


if __name__ == "__main__":
    for given in sys.argv[2:]:
        main(sys.argv[1], int(given))
"""
THEIRS = "from torch.utils.data import DataLoader, Dataset, random_split"
OURS = "from penstock.torch import DataLoader\nfrom torch.utils.data import Dataset, random_split"


OF_OURS = """
import penstock as ps
import torch

class Images:
    classes = ["cat", "dog"]

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(index).numpy() + len(self.classes)

def main():
    with ps.Loader(ps.read(Images()).batch(5), num_workers=1, workers="processes") as loader:
        print([batch.tolist() for batch in loader])

if __name__ == "__main__":
    main()
"""


def losses(script: Path, folder: Path, *num_workers: int) -> list[str]:
    """Train with each number of workers, and return the losses, to the last bit, and the accuracy after epochs."""
    command = [sys.executable, "-W", "ignore", str(script), str(folder), *map(str, num_workers)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


def test_a_script_whose_code_has_a_name_of_torchs(tmp_path: Path) -> None:
    """Workers import a script's objects that cloudpickle can't copy, as with a name of torch's module `classes`."""
    script = tmp_path / "script.py"
    script.write_text(OF_OURS)
    command = [sys.executable, "-W", "ignore", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.stdout, ended.stderr) == ("[[2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]\n", "")


def test_the_same_losses(tmp_path: Path) -> None:
    """To the last bit, in this process and with two workers: here only torch's own loader draws, and the model."""
    folder = tmp_path / "digits"
    write_digits(folder, every=6)
    assert TRAINING.count(THEIRS) == 1
    script, changed = tmp_path / "script.py", tmp_path / "changed.py"
    script.write_text(TRAINING)
    changed.write_text(TRAINING.replace(THEIRS, OURS))
    expected = losses(script, folder, 0)
    assert len(expected) == 2 * (240 // 32 + 1)
    assert len(set(expected)) == len(expected)
    assert losses(changed, folder, 0, 2) == [*expected, *expected]
