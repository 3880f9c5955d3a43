"""Folders of images: `class/name.jpg`, at any depth below the class.

A second folder of the same form, or a list of names, says which labels are verified. A folder may also hold `train`,
and beside it `clean`, `valid` and `test`, each of that form.
"""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fasten.data.decoding import SUFFIXES, Decoding, Inside, same_bytes
from fasten.data.labels import PARTS, Part, Picked, composed, is_utf8
from fasten.data.rows import Columns, Rows, add_verdicts, make_columns, make_image_rows
from fasten.data.verdicts import read_verdicts
from fasten.suggest import listed

Role = Literal["train", "clean", "valid", "test"]
StrPath = str | os.PathLike[str]

ROLES: Mapping[str, Role] = {**PARTS, "clean": "clean"}  # names of the folders of parts

# What is skipped and counted.
HIDDEN, OTHER, LINKED, LOOSE = "hidden files", "files that are not images", "links to folders", "images outside classes"
FOREIGN = "names of folders that are not classes of the model"


@dataclass(frozen=True)
class _Image:
    id: str
    label: str | None  # None: not in a class folder
    path: Path  # with links resolved


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a folder, not opened yet."""

    name: str
    columns: Columns
    paths: list[Path]  # with links resolved
    notes: list[str]


def read_folder(
    root: StrPath,
    *,
    clean: StrPath | None = None,
    verified: StrPath | None = None,
    valid: StrPath | None = None,
    test: StrPath | None = None,
    how: Decoding | None = None,
    class_names: Sequence[str] | None = None,
) -> Rows:
    """Read the images of a folder; their ids are their paths in it.

    `clean`, `valid` and `test` are folders of the same form. An image in `clean` is a verified row without a given
    label; if a file in `root` has the same bytes, its row is verified instead, and keeps its given label. `verified`
    is a list of images in `root`, one per line: the label after the name is the right one; without it, the given label
    is right. The list may have a first line `name,label` and a column `picked`, which also holds for images in `clean`;
    by default, rows count as picked at random. With `class_names`, those of a trained model, images need no label.
    """
    found = list_folder(root, {"clean": clean, "valid": valid, "test": test}, verified, class_names)
    return make_image_rows(found.name, found.columns, found.paths, how or Decoding(), class_names, found.notes)


def list_folder(
    root: StrPath,
    parts: Mapping[Role, StrPath | None],
    verified: StrPath | None = None,
    class_names: Sequence[str] | None = None,
    known: Sequence[str] = (),
) -> Listing:
    """List what `read_folder` reads, without opening any image; `parts` are the folders beside `root`.

    `known` are labels of verdicts that are not read this time.
    """
    root = Path(root)
    name = root.name or str(root)
    folders = _folders(root, parts)
    ignored: Counter[str] = Counter()
    images = {role: list(_images(folder, called, folders, ignored)) for role, folder, called in _called(root, folders)}
    if class_names is None:
        images = {role: _labelled(found, ignored) for role, found in images.items()}
        _check_filled(folders, images, _unread(ignored))
    else:
        images = {role: _known(found, class_names, ignored) for role, found in images.items()}
        if not any(images.values()):
            raise ValueError(f"{root} holds no images{_unread(ignored)}; give a folder of images")
    kept, columns = _columns(name, images, "train" if folders["train"] != root else None)
    if verified is not None:
        said = read_verdicts(Path(verified), root, columns, class_names)
        # A clean folder does not say how its images were picked: they are random unless the list calls them chosen.
        columns = make_columns(**vars(add_verdicts(name, replace(columns, picked=(None,) * len(kept)), said)))
    if class_names is None:
        _check_depth(root, images, columns.labels().union(known))
    return Listing(name, columns, [image.path for image in kept], _unused(name, ignored))


def _folders(root: Path, asked: Mapping[Role, StrPath | None]) -> dict[Role, Path]:
    """Return the folder of each part of the data, the noisy images first."""
    for folder in (root, *(Path(folder) for folder in asked.values() if folder is not None)):
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}; give the path of a folder of images")
    inside = [entry.name for entry in os.scandir(root) if entry.is_dir() and not _is_hidden(entry.name)]
    folders: dict[Role, Path] = {"train": root}
    if any(ROLES.get(name.lower()) == "train" for name in inside) and all(name.lower() in ROLES for name in inside):
        folders = {}
        for name in sorted(inside, key=lambda name: list(ROLES).index(name.lower())):
            role = ROLES[name.lower()]
            if role in folders or asked.get(role) is not None:
                other = folders.get(role) or asked[role]
                raise ValueError(f"both {root / name} and {other} hold the {role} images; keep one of them")
            folders[role] = root / name
    folders |= {role: Path(folder) for role, folder in asked.items() if folder is not None}
    places = {os.path.realpath(folder): role for role, folder in folders.items()}
    for role, folder in folders.items():
        if places[os.path.realpath(folder)] != role:
            raise ValueError(f"{folder} is given as the {role} part and as another; give each part its own folder")
    return folders


def _called(root: Path, folders: Mapping[Role, Path]) -> list[tuple[Role, Path, str]]:
    """Return each part, its folder, and the beginning of its images' ids.

    This is the folder's path in the root. If the folder is elsewhere, it is the folder's name, or the role if two such
    folders have that name.
    """
    real = {role: os.path.realpath(folder) for role, folder in folders.items()}
    top = os.path.join(os.path.realpath(root), "")
    outside = Counter(folders[role].name for role, path in real.items() if not os.path.join(path, "").startswith(top))
    told = []
    for role, folder in folders.items():
        called = os.path.join(real[role], "").removeprefix(top).replace(os.sep, "/")
        if os.path.isabs(called):
            called = f"{role if outside[folder.name] > 1 else folder.name}/"
        told.append((role, folder, called))
    return told


def _images(folder: Path, called: str, folders: Mapping[Role, Path], ignored: Counter[str]) -> Iterator[_Image]:
    """Yield the images of one part, sorted by name; other parts inside its folder are skipped."""
    inside = Inside(folder)
    others = {os.path.realpath(other) for other in folders.values()} - {inside.folder}
    for name in _walk(inside, "", others, ignored):
        yield _Image(called + name, name.split("/")[0] if "/" in name else None, inside(name))


def _walk(inside: Inside, below: str, others: set[str], ignored: Counter[str]) -> Iterator[str]:
    """Yield the paths of image files, with / between names; a link that leads out raises ValueError."""
    with os.scandir(os.path.join(inside.folder, below)) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        if not is_utf8(name):
            raise ValueError(f"the file name {name!r} in {inside.folder} is not UTF-8; rename it")
        is_image = os.path.splitext(entry.name)[1].lower() in SUFFIXES
        if _is_hidden(entry.name):
            ignored[HIDDEN] += 1
        elif entry.is_symlink() and (is_image or entry.is_dir()) and inside(name).is_dir():  # raises if it leads out
            ignored[LINKED] += 1
        elif entry.is_dir():
            if os.path.realpath(entry.path) not in others:
                yield from _walk(inside, name, others, ignored)
        elif is_image:
            yield name
        else:
            ignored[OTHER + os.path.splitext(entry.name)[1].lower()] += 1


def _unused(name: str, ignored: Mapping[str, int]) -> list[str]:
    """Write a note for each kind of thing that is skipped; other files are one kind, listed by suffix."""
    kinds = {what: f"{count:,}" for what, count in ignored.items() if count and not what.startswith(OTHER)}
    if others := sum(count for what, count in ignored.items() if what.startswith(OTHER)):
        kinds[OTHER] = ": ".join([f"{others:,}", *filter(None, [listed(_endings(ignored))])])
    return [f"{name}: not used: {what} ({count})" for what, count in sorted(kinds.items())]


def _endings(ignored: Mapping[str, int]) -> list[str]:
    """Return the suffixes of the files that are not images."""
    return sorted(what.removeprefix(OTHER) for what in ignored if what.startswith(OTHER) and what != OTHER)


def _unread(ignored: Mapping[str, int]) -> str:
    """Name the kinds of files that are not read, for a folder that holds no images."""
    endings = _endings(ignored)
    return f" ({listed(endings)} files are not read; JPEG and PNG are)" if endings else ""


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _labelled(images: Sequence[_Image], ignored: Counter[str]) -> list[_Image]:
    ignored[LOOSE] += sum(image.label is None for image in images)
    return [image for image in images if image.label is not None]


def _known(images: Sequence[_Image], classes: Sequence[str], ignored: Counter[str]) -> list[_Image]:
    """Keep only labels that are classes of the model, in either Unicode form; other folders are no labels."""
    known, found = {composed(label): label for label in classes}, {image.label for image in images}
    meant = {label: known.get(composed(label)) for label in found if label is not None}
    ignored[FOREIGN] += sum(label is None for label in meant.values())
    return [replace(image, label=meant.get(image.label or "")) for image in images]


def _check_filled(folders: Mapping[Role, Path], images: Mapping[Role, Sequence[_Image]], unread: str) -> None:
    """Refuse a part without images in class folders, and a class without images to train on."""
    for role, folder in folders.items():
        if not images[role]:
            raise ValueError(
                f"{folder} holds no images in folders{unread}; put each image into a folder named after its label, "
                f"such as {folder / 'cat/1.jpg'}"
            )
    folder, filled = folders["train"], {image.label for image in images["train"]}
    others = {os.path.realpath(other) for other in folders.values()}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        is_class = entry.is_dir(follow_symlinks=False) and not _is_hidden(entry.name)
        if is_class and entry.name not in filled and os.path.realpath(entry.path) not in others:
            raise ValueError(
                f"the class {entry.name!r} in {folder} has no images; put some there, or remove the folder"
            )


def _check_depth(root: Path, images: Mapping[Role, Sequence[_Image]], labels: set[str]) -> None:
    """Refuse a folder whose only subfolder holds the labels' folders, as in many archives.

    Verdicts may name further labels: if these are not folders in it, the only subfolder may well be a label.
    """
    tops = {image.label for found in images.values() for image in found}
    if len(tops) > 1:
        return
    folders = {posixpath.dirname(image.id) for image in images["train"]}
    around = posixpath.commonpath(folders)
    below = {folder[len(around) + 1 :].split("/")[0] for folder in folders}
    if around not in folders and labels - tops <= below:
        raise ValueError(
            f"{root} has only the label {tops.pop()!r}: all images are in that folder; if {listed(sorted(below))} are "
            f"labels, give {root / around}"
        )


def _columns(name: str, images: Mapping[Role, Sequence[_Image]], train: Part | None) -> tuple[list[_Image], Columns]:
    """Return all rows, noisy ones first, and what their folders say about them."""
    noisy, clean = images["train"], images.get("clean", [])
    _check_clean(name, clean)
    paths, first = [image.path for image in (*noisy, *clean)], len(noisy)
    pairs = same_bytes(paths, range(first, len(paths)), range(first))
    known = {one - first for one, _ in pairs}
    rows: list[tuple[_Image, str | None, str | None, Part | None]]  # with its given and verified labels, and its part
    rows = [(image, image.label, None, train) for image in noisy]
    rows += [(image, None, image.label, None) for place, image in enumerate(clean) if place not in known]
    for part in ("valid", "test"):
        rows += [(image, image.label, None, part) for image in images.get(part, [])]
    columns = make_columns(
        [image.id for image, _, _, _ in rows],
        given=[given for _, given, _, _ in rows],
        verified=[verified for _, _, verified, _ in rows],
        split=[part for _, _, _, part in rows],
    )
    verdicts: list[tuple[int, str, Picked]] = []
    for one, row in pairs:
        if (label := clean[one - first].label) is not None:
            verdicts.append((row, label, "random"))
    return [image for image, _, _, _ in rows], add_verdicts(name, columns, verdicts)


def _check_clean(name: str, clean: Sequence[_Image]) -> None:
    """Refuse an image that is in two classes of the clean folder."""
    paths = [image.path for image in clean]
    for one, other in same_bytes(paths, range(len(paths)), range(len(paths))):
        first, second = clean[one], clean[other]
        if first.label != second.label:
            raise ValueError(
                f"{name}: {first.id!r} and {second.id!r} are the same image, verified as {first.label!r} and as "
                f"{second.label!r}; keep the one that is right"
            )
