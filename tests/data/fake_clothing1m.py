"""A tiny tree in the layout of Clothing1M: lists, labels, and images of mixed sizes, colours and formats."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = (
    *("T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker"),
    *("Jacket", "Downcoat", "Suit", "Shawl", "Dress", "Vest", "Underwear"),
)
SIZES = ((40, 40), (61, 43), (30, 70), (90, 33))
MODES = ("RGB", "L", "CMYK", "P", "RGBA")


@dataclass
class FakeClothing:
    """What the official files hold, by their names, and where the images lie."""

    root: Path
    keys: dict[str, list[str]] = field(default_factory=dict)  # list -> images
    noisy: dict[str, int] = field(default_factory=dict)
    clean: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, noisy: int | None, clean: int | None) -> str:
        """One more image of a list."""
        mine = self.keys.setdefault(name, [])
        number = sum(map(len, self.keys.values()))
        key = f"images/{number % 3}/{number % 7}/{1000 + number},{number}.jpg"
        mine.append(key)
        self.noisy |= {} if noisy is None else {key: noisy}
        self.clean |= {} if clean is None else {key: clean}
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(number, SIZES[number % len(SIZES)], MODES[number % len(MODES)]))
        return key

    def write(self, folder: Path | None = None, end: str = "\n") -> None:
        """The text files."""
        folder = folder or self.root
        folder.mkdir(parents=True, exist_ok=True)
        for name, keys in self.keys.items():
            write_lines(folder / name, keys, end)
        for name, labels in (("noisy_label_kv.txt", self.noisy), ("clean_label_kv.txt", self.clean)):
            write_lines(folder / name, [f"{key} {label}" for key, label in labels.items()], end)
        write_lines(folder / "category_names_eng.txt", NAMES, end)


def write_lines(path: Path, lines: Sequence[str], end: str = "\n") -> None:
    path.write_bytes("".join(line + end for line in lines).encode())


def image_bytes(seed: int, size: tuple[int, int], mode: str) -> bytes:
    """A smooth image; what JPEG cannot hold is a PNG, whatever its name."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    image = small.resize(size, Image.Resampling.BICUBIC).convert(mode)
    file = io.BytesIO()
    if mode == "P":
        image.save(file, "PNG", transparency=bytes(range(10)))
    else:
        image.save(file, "JPEG" if mode in ("RGB", "L", "CMYK") else "PNG")
    return file.getvalue()


def make_tree(root: Path) -> FakeClothing:
    """28 noisy, 28 clean, 14 validation and 14 test rows; the clean ones of even number have a given label too."""
    tree = FakeClothing(root)
    for number in range(28):
        tree.add("noisy_train_key_list.txt", number % 14, None)
    for number in range(28):
        label = number // 2
        tree.add("clean_train_key_list.txt", None if number % 2 else (label + number % 4 // 2) % 14, label)
    for number in range(14):
        tree.add("clean_val_key_list.txt", (number + 1) % 14 if number < 5 else None, number)
        tree.add("clean_test_key_list.txt", number if number < 5 else None, number)
    tree.noisy["images/9/9/nowhere.jpg"] = 3  # the official labels, too, are of more images than the lists
    tree.write()
    return tree
