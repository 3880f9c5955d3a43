"""Repaired copies: right labels, nothing lost, nothing half-written, and the data untouched."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

import fasten.audit.repair as repair
from command_line import tree
from fasten.audit.repair import find_originals, write_folder, write_table
from fasten.audit.stored import read_audit
from fasten.cli import main
from fasten.data import hub
from fasten.data.rows import make_columns
from fasten.own import Own, read_rows
from finished_runs import make_run
from own_data import write_digits

NAMES = ["d0", "d1", "d2"]


@pytest.fixture
def photos(folder):
    """A folder of digits, a run whose model knows all their labels, and those labels; three rows have verdicts."""
    _, truth = write_digits(folder / "photos", per_class=12)
    ids = sorted(truth)
    given = [name.split("/")[0] for name in ids]
    verified = [truth[name] if row < 3 else None for row, name in enumerate(ids)]
    believed = [truth[name] for name in ids]
    make_run(folder / "run", "photos", ids, given, believed, NAMES, verified=verified, picked=["chosen"] * len(ids))
    return read_audit(folder / "run"), truth


def labels_by_content(folder: Path, level: int = 0, pattern: str = "*.png") -> dict[bytes, str]:
    """The class folder of each image, by what it shows."""
    files = [path for path in folder.rglob(pattern)]
    return {path.read_bytes(): path.relative_to(folder).parts[level] for path in files}


def test_every_image_is_linked_into_the_folder_of_its_label(photos):
    found, truth = photos
    before = tree(Path("photos"))
    done = write_folder(found, find_originals(found), Path("repaired"))
    wrong = [name for name, label in truth.items() if name.split("/")[0] != label]
    assert (done.rows, done.changed, done.linked) == (36, len(wrong), 36)
    wanted = {(Path("photos") / name).read_bytes(): label for name, label in truth.items()}
    assert labels_by_content(Path("repaired")) == wanted
    assert tree(Path("photos")) == before
    inodes = {path.stat().st_ino for path in Path("photos").rglob("*.png")}
    assert {path.stat().st_ino for path in Path("repaired").rglob("*.png")} == inodes
    assert sorted(os.listdir()) == ["photos", "repaired", "run", "verified.txt"]


def test_a_link_that_leads_nowhere_is_left_out(photos):
    found, _ = photos
    name = sorted(Path("photos").rglob("*.png"))[5]
    name.unlink()
    name.symlink_to("nowhere.png")
    done = write_folder(found, find_originals(found), Path("repaired"))
    assert (done.rows, done.left_out) == (35, 1)
    assert len(labels_by_content(Path("repaired"))) == 35


@pytest.mark.parametrize("how", ["sorted", "edited"])
def test_data_in_another_order_are_refused_and_not_mislabelled(folder, how):
    """Rows without ids are known by their place alone."""
    rows = [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b")]
    make_run(folder / "run", "rows.csv", list("0123"), [label for _, label in rows], ["a"] * 4, ["a", "b"])
    found = read_audit(folder / "run")
    now = sorted(rows, key=lambda row: row[1]) if how == "sorted" else [*rows[:3], ("4", "a")]
    for wrong, lines in ((False, rows), (True, now)):
        Path("rows.csv").write_text("x,label\n" + "".join(f"{x},{label}\n" for x, label in lines))
        if wrong:
            with pytest.raises(ValueError, match=r"changed or put in another order since"):
                find_originals(found)
        else:
            find_originals(found)


def test_labels_with_injected_noise_are_no_repair(photos):
    found, _ = photos
    found.record["run"]["noise"] = "pair:0.4"
    with pytest.raises(ValueError, match=r"pair:0.4 injected.*train without --noise"):
        find_originals(found)


def test_where_links_cannot_be_made_the_images_are_copied(photos, monkeypatch):
    def refused(*places):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    found, truth = photos
    done = write_folder(found, find_originals(found), Path("repaired"))
    assert (done.rows, done.linked) == (36, 0)
    assert len(labels_by_content(Path("repaired"))) == len(truth)
    assert all(path.stat().st_nlink == 1 for path in Path("repaired").rglob("*.png"))


def test_names_that_meet_in_one_folder_are_told_apart(folder):
    for label in ("a", "b"):
        for number in range(3):
            path = folder / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 50 * number + len(label) + (label == "a"), np.uint8)).save(path)
    ids = [f"{label}/{number}.png" for label in "ab" for number in range(3)]
    make_run(folder / "run", "photos", ids, [name[0] for name in ids], ["a"] * 6, ["a", "b"])
    found = read_audit(folder / "run")
    contents = {path.read_bytes() for path in Path("photos").rglob("*.png")}
    labels = [found.table.set_index("id")["corrected"][name] for name in ids]
    write_folder(found, find_originals(found), Path("repaired"))
    made = list(Path("repaired").rglob("*.png"))
    assert {path.read_bytes() for path in made} == contents
    assert sorted(path.parent.name for path in made) == sorted(labels)
    for number in range(3):
        assert (Path("repaired/a") / f"{number}.png").read_bytes() == (Path("photos/a") / f"{number}.png").read_bytes()


def test_names_that_differ_in_case_alone_go_to_two_places(folder):
    """Else a disk that does not tell them apart would have the second one written into the first one's original."""
    ids = ["a/IMG.png", "b/img.png", "b/other.png"]
    for number, name in enumerate(ids):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(folder / "photos" / name)
    found = read_audit(make_run(folder / "run", "photos", ids, ["a", "b", "b"], ["b", "b", "b"], ["a", "b"]))
    write_folder(found, find_originals(found), Path("repaired"))
    assert sorted(os.listdir("repaired/b")) == ["IMG-2.png", "img.png", "other.png"]


def test_a_disk_that_takes_two_names_for_one_keeps_the_originals_as_they_are(photos, monkeypatch):
    """As one that does not tell upper from lower case does; here each file but the first is already there."""
    before, there = tree(Path("photos")), Path.exists

    def taken(path):
        return there(path) or (path.suffix == ".png" and any(path.parent.iterdir()))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", taken)
        with pytest.raises(ValueError, match=r"two images would both be .*choose --out on another disk"):
            write_folder(photos[0], find_originals(photos[0]), Path("repaired"))
    assert not Path("repaired").exists()
    assert tree(Path("photos")) == before


@pytest.mark.parametrize("target", ["photos", "photos/new", "run", "verified.txt"])
def test_a_target_that_is_there_or_lies_in_the_data_is_refused(photos, target):
    before = tree(Path.cwd())
    with pytest.raises(ValueError, match=r"already exists|is inside the data"):
        write_folder(photos[0], find_originals(photos[0]), Path(target))
    assert tree(Path.cwd()) == before


def test_a_failure_leaves_nothing(photos, monkeypatch):
    made = []

    def fails(source, target, real=os.link):
        made.append(target)
        if len(made) > 5:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "link", fails)
    before = sorted(os.listdir())
    with pytest.raises(KeyboardInterrupt):
        write_folder(photos[0], find_originals(photos[0]), Path("repaired"))
    assert len(made) > 5
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_a_folder_is_read_again_with_the_repaired_labels(photos, kind):
    found, truth = photos
    before = tree(Path("photos"))
    write_table(found, find_originals(found, as_text=kind == "csv"), kind, Path(f"repaired.{kind}"))
    rows = read_rows(f"repaired.{kind}", Own())
    assert dict(zip(rows.ids, rows.given, strict=True)) == truth
    assert [label for label in rows.verified if label] == [truth[name] for name in sorted(truth)[:3]]
    assert set(rows.picked) == {None, "chosen"}, "verdicts that made the repair are no random sample of it"
    assert tree(Path("photos")) == before
    images = read_rows("photos", Own())
    shown = {name: np.asarray(images.x[np.array([n])]).tobytes() for n, name in enumerate(images.ids)}
    assert {name: np.asarray(rows.x[np.array([n])]).tobytes() for n, name in enumerate(rows.ids)} == shown


def test_the_original_labels_stay_in_a_column(photos):
    found, truth = photos
    write_table(found, find_originals(found), "csv", Path("repaired.csv"))
    with open("repaired.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["id"]: line["original_label"] for line in lines} == {name: name.split("/")[0] for name in truth}
    assert {line["path"] for line in lines} == {f"photos/{name}" for name in truth}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_first_labels_outlive_a_second_repair(folder, kind):
    """Of a row that came without a label, and of one that was added between the repairs, too."""
    first = [("r0", "3"), ("r1", "3"), ("r2", ""), ("r3", "=4"), ("r4", "3")]
    lines = [f"{name},{row},{label},{'=4' if name == 'r2' else ''}" for row, (name, label) in enumerate(first)]
    Path("items.csv").write_text("id,x,label,verified_label\n" + "\n".join(lines) + "\n")
    classes = ["3", "=4"]

    def repair_to(believed: str, data: str, out: str) -> None:
        rows = read_rows(data, Own())
        labelled = [row for row, label in enumerate(rows.given) if label]
        ids, given = ([column[row] for row in labelled] for column in (rows.ids, rows.given))
        made = make_run(Path(out).with_suffix(""), data, ids, given, [believed] * len(ids), classes)
        found = read_audit(made)
        write_table(found, find_originals(found, as_text=kind == "csv"), kind, Path(out))

    def labels_of(path: str, column: str) -> dict[str, str]:
        table = pa.csv.read_csv(path) if kind == "csv" else pa.parquet.read_table(path)
        texts = [str(cell or "").lstrip("'") for cell in table[column].to_pylist()]
        return dict(zip(table["id"].to_pylist(), texts, strict=True))

    once, twice = f"once.{kind}", f"twice.{kind}"
    repair_to("=4", "items.csv", once)
    table = pa.csv.read_csv(once) if kind == "csv" else pa.parquet.read_table(once)
    new = {"id": "r5", "x": 9, "label": "3"}
    added = pa.table({field.name: pa.array([new.get(field.name)], field.type) for field in table.schema})
    (pa.csv.write_csv if kind == "csv" else pa.parquet.write_table)(pa.concat_tables([table, added]), once)
    repair_to("3", once, twice)
    assert labels_of(once, "label")["r0"] != labels_of(twice, "label")["r0"]
    assert labels_of(twice, "original_label") == {**dict(first), "r5": "3"}


def test_a_table_elsewhere_would_have_paths_that_lead_out(photos):
    Path("sub").mkdir()
    with pytest.raises(ValueError, match="must be in the folder of photos or above it"):
        write_table(photos[0], find_originals(photos[0]), "csv", Path("sub/repaired.csv"))
    assert os.listdir("sub") == []


@pytest.mark.parametrize(("kind", "out"), [("csv", "x.parquet"), ("parquet", "x.csv"), ("csv", "verified.txt")])
def test_the_name_must_fit_the_kind(photos, kind, out):
    with pytest.raises(ValueError, match="must end in"):
        write_table(photos[0], find_originals(photos[0]), kind, Path(out))


def write_items(path: Path, labels=("-1", "=b"), more: str = "") -> None:
    """A table of features with odd names and labels; every other label is wrong for the last two rows."""
    lines = [f"id,f1,f2,label,split{more and ',note'}"]
    for row in range(8):
        note = f",{more}" if more else ""
        lines.append(f"+r{row},{row}.50,-{row},{labels[row % 2]},{'test' if row == 7 else ''}{note}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_keeps_its_features_and_odd_names(folder, kind):
    write_items(folder / "items.csv")
    ids = [f"+r{row}" for row in range(7)]
    given = ["-1", "=b"] * 4
    believed = ["-1", "=b", "-1", "=b", "-1", "=b", "=b"]
    make_run(folder / "run", "items.csv", ids, given[:7], believed, ["-1", "=b"])
    found = read_audit(folder / "run")
    corrected = dict(zip(found.known.ids, found.in_order("corrected"), strict=True))
    write_table(found, find_originals(found, as_text=kind == "csv"), kind, folder / f"new.{kind}")
    old, new = read_rows("items.csv", Own()), read_rows(f"new.{kind}", Own())
    np.testing.assert_array_equal(new.x, old.x)
    assert (new.ids, new.split, new.feature_names) == (old.ids, old.split, old.feature_names)
    assert new.given == (*(corrected[name] for name in ids), "=b")
    assert new.class_names == old.class_names
    if kind == "csv":
        with open("new.csv", newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
        assert "7.50" in cells, "numbers are written as they were"


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_numbers_with_blanks_around_them_stay_numbers(folder, blank):
    """As np.savetxt writes them: a blank where others have a minus."""
    cells = [f"{blank}1.5e-3", "-2.5e-3", f"-3e2{blank}", f"{blank}-4"]
    lines = [f"{cell},{label}" for cell, label in zip(cells, "abab", strict=True)]
    Path("items.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    make_run(folder / "run", "items.csv", list("0123"), list("abab"), list("abab"), ["a", "b"])
    found = read_audit(folder / "run")
    write_table(found, find_originals(found), "csv", folder / "new.csv")
    np.testing.assert_array_equal(read_rows("new.csv", Own()).x, read_rows("items.csv", Own()).x)


def test_a_test_row_with_a_verdict_gets_its_verdict(folder):
    lines = ["id,f,label,verified_label,split", "a,1,x,,", "b,2,y,,", "c,3,x,y,test", "d,4,y,,test"]
    (folder / "items.csv").write_text("\n".join(lines) + "\n")
    make_run(folder / "run", "items.csv", ["a", "b"], ["x", "y"], ["x", "y"], ["x", "y"])
    found = read_audit(folder / "run")
    assert write_table(found, find_originals(found), "csv", folder / "new.csv").changed == 1
    assert read_rows("new.csv", Own()).given == ("x", "y", "y", "y")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("list.csv", pa.string()),
        *(("list.parquet", kind) for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))),
    ],
)
def test_formulas_in_columns_that_nobody_reads_are_marked_too(folder, name, kind):
    (folder / "img").mkdir()
    ids = [f"img/{row}.png" for row in range(4)]
    for row, path in enumerate(ids):
        Image.fromarray(np.full((4, 4), 60 * row, np.uint8)).save(folder / path)
    notes = pa.array([f"=cmd|{row}" for row in range(4)]).cast(kind)
    table = pa.table({"path": ids, "label": list("abab"), "note": notes})
    (pa.csv.write_csv if name == "list.csv" else pa.parquet.write_table)(table, folder / name)
    make_run(folder / "run", name, ids, list("abab"), list("abaa"), ["a", "b"])
    found = read_audit(folder / "run")
    write_table(found, find_originals(found), "csv", folder / "new.csv")
    assert "'=cmd|2" in (folder / "new.csv").read_text()
    assert read_rows("new.csv", Own()).ids == tuple(ids)
    write_folder(found, find_originals(found), folder / "new")
    assert sum(len(files) for _, _, files in os.walk(folder / "new")) == 4


def test_a_copy_of_a_hub_folder_has_its_columns(folder, monkeypatch):
    """Not the features that they became: categories as texts, and lists as lists."""
    columns = {
        "e": [[1.0, 2.0], [3.0, 4.0]] * 2,
        "coat": list("xyxy"),
        "age": [None, 1.0, 2.0, 3.0],
        "label": list("abab"),
    }
    monkeypatch.setattr(hub, "_load", lambda path: pa.table(columns))
    (folder / "pets").mkdir()
    (folder / "pets" / "dataset_dict.json").write_text("{}")
    make_run(folder / "run", "pets", list("0123"), list("abab"), list("abaa"), ["a", "b"])
    found = read_audit(folder / "run")
    write_table(found, find_originals(found), "parquet", folder / "new.parquet")
    table = pa.parquet.read_table(folder / "new.parquet").to_pydict()
    assert {name: table[name] for name in ("e", "coat", "age")} == {
        name: columns[name] for name in ("e", "coat", "age")
    }
    assert (table["label"], table["original_label"]) == (list("abaa"), list("abab"))
    with pytest.raises(ValueError, match="the column 'e' holds lists, which a CSV cannot"):
        write_table(found, find_originals(found), "csv", folder / "new.csv")


@pytest.mark.parametrize(
    ("stored", "labels", "verdict", "kept"),
    [
        (pa.int64(), [3, 4, 3, 4], "4", True),
        (pa.float64(), [3, 4, 3, 4], "4", True),
        (pa.bool_(), [True, False, True, False], "False", True),
        (pa.dictionary(pa.int32(), pa.string()), list("abab"), "b", True),
        (pa.int64(), [3, 4, 3, 4], "none of these", False),
    ],
    ids=str,
)
def test_labels_in_parquet_keep_the_type_that_they_had_if_it_can_hold_them(folder, stored, labels, verdict, kept):
    labels = pa.array(labels).cast(stored)
    pa.parquet.write_table(pa.table({"x": range(4), "label": labels}), folder / "items.parquet")
    given = list(read_rows("items.parquet", Own()).given)
    classes = sorted({*given, verdict})
    verified = [verdict, None, None, None]
    make_run(folder / "run", "items.parquet", list("0123"), given, given[:1] * 4, classes, verified=verified)
    found = read_audit(folder / "run")
    for kind in ("parquet", "csv"):
        write_table(found, find_originals(found, as_text=kind == "csv"), kind, folder / f"new.{kind}")
        rows = read_rows(f"new.{kind}", Own())
        assert (rows.given, rows.verified) == ((verdict, *given[:1] * 3), (verdict, None, None, None))
    table = pa.parquet.read_table(folder / "new.parquet")
    types = [table[name].type for name in ("label", "verified_label", "original_label", "picked")]
    of_verdicts = stored if kept else pa.string()
    assert types == [of_verdicts, of_verdicts, stored, pa.string()]
    assert table["original_label"].to_pylist() == labels.to_pylist()


def test_arrays_become_a_table_or_a_folder_of_png_files(folder):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 3)).astype(np.float32), ["a", "b"] * 3
    np.savez(folder / "emb.npz", x=x, labels=np.array(y))
    ids = [str(row) for row in range(6)]
    make_run(folder / "run", "emb.npz", ids, y, y, ["a", "b"])
    found = read_audit(folder / "run")
    for kind in ("csv", "parquet"):
        write_table(found, find_originals(found), kind, folder / f"emb.{kind}")
        np.testing.assert_array_equal(read_rows(f"emb.{kind}", Own()).x, x)
    images = rng.integers(0, 256, (6, 5, 4, 3), np.uint8)
    np.savez(folder / "images.npz", x=images, labels=np.array(y))
    make_run(folder / "run-2", "images.npz", ids, y, y, ["a", "b"])
    found = read_audit(folder / "run-2")
    with pytest.raises(ValueError, match="use --export folder"):
        write_table(found, find_originals(found), "csv", folder / "images.csv")
    write_folder(found, find_originals(found), folder / "images")
    for row in range(6):
        np.testing.assert_array_equal(np.asarray(Image.open(folder / f"images/{y[row]}/{row}.png")), images[row])


def test_marks_before_formulas_do_not_pile_up(folder):
    """A cell that had one of its own keeps it in CSV files."""
    notes = ["=A0", "'=A1", "''+x", "'tis", "-1", "@b"]
    Path("first.csv").write_text("path,label,note\n" + "\n".join(f"{n}.png,a,{note}" for n, note in enumerate(notes)))
    ids = [f"{row}.png" for row in range(6)]
    for row, name in enumerate(ids):
        Image.new("L", (4, 4), 40 * row).save(folder / name)
    for data, out in (("first.csv", "second.csv"), ("second.csv", "third.csv"), ("third.csv", "last.parquet")):
        found = read_audit(make_run(folder / Path(out).stem, data, ids, ["a"] * 6, ["a"] * 6, ["a", "b"]))
        kind = "csv" if out.endswith(".csv") else "parquet"
        write_table(found, find_originals(found, as_text=kind == "csv"), kind, folder / out)
    for name in ("second.csv", "third.csv"):
        assert pa.csv.read_csv(name)["note"].to_pylist() == ["'=A0", "'=A1", "''+x", "'tis", "-1", "'@b"]
    assert pa.parquet.read_table("last.parquet")["note"].to_pylist() == ["=A0", "=A1", "'+x", "'tis", "-1", "@b"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_other_columns_of_a_table_of_images_stay_as_they_are_written(folder, kind):
    notes = {"shelf": ["00000", "007"], "seen": ["2020-01-05", ""], "sure": ["True", "1e3"]}
    lines = [",".join(["path", "label", *notes])]
    for row, more in enumerate(zip(*notes.values(), strict=True)):
        Image.new("L", (4, 4), 60 * row).save(folder / f"{row}.png")
        lines.append(",".join([f"{row}.png", "ab"[row], *more]))
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    make_run(folder / "run", "list.csv", ["0.png", "1.png"], ["a", "b"], ["a", "b"], ["a", "b"])
    found = read_audit(folder / "run")
    write_table(found, find_originals(found, as_text=kind == "csv"), kind, folder / f"new.{kind}")
    types = pa.csv.ConvertOptions(column_types={name: pa.string() for name in notes})
    read = pa.csv.read_csv(folder / "new.csv", convert_options=types) if kind == "csv" else None
    table = pa.parquet.read_table(folder / "new.parquet") if read is None else read
    assert {name: table[name].to_pylist() for name in notes} == notes


def test_images_of_a_table_get_names_that_the_next_run_reads(folder):
    formats = ["PNG", "JPEG", "MPO", "GIF", "BMP", "TIFF", "WEBP", "PPM"]
    names = [*(f"scan.{kind}-of-2020" for kind in formats), ".hidden.png", ".png", "kept.JPG", "scan.png", "..."]
    for row, name in enumerate(names):
        more = {"save_all": True, "append_images": [Image.new("L", (4, 4))]} if "MPO" in name else {}
        (folder / "img").mkdir(exist_ok=True)
        Image.new("L", (4, 4), 20 * row).save(folder / "img" / name, [*formats, *["PNG"] * 5][row], **more)
    ids = [f"img/{name}" for name in names]
    given = [*["a", "b"] * 6, "a"]
    (folder / "list.csv").write_text("path,label\n" + "\n".join(map(",".join, zip(ids, given, strict=True))) + "\n")
    make_run(folder / "run", "list.csv", ids, given, given, ["a", "b"])
    found = read_audit(folder / "run")
    write_folder(found, find_originals(found), folder / "new")
    labels = {(folder / name).read_bytes(): label for name, label in zip(ids, given, strict=True)}
    assert labels_by_content(folder / "new", pattern="*.*") == labels
    rows = read_rows("new", Own())
    assert len(rows) == 13
    whole = {"a/kept.JPG", "b/scan.png", "a/hidden.png", "b/png.png", "a/12.png", "a/scan.PNG-of-2020.png"}
    assert whole <= set(rows.ids)


def test_an_image_of_a_table_that_is_not_there_is_left_out(folder, capsys):
    for name in "ab":
        Image.new("L", (4, 4), 60).save(folder / f"{name}.png")
    (folder / "list.csv").write_text("path,label\na.png,x\nb.png,y\ngone.png,y\n")
    make_run(folder / "run", "list.csv", ["a.png", "b.png"], ["x", "y"], ["y", "y"], ["x", "y"])
    assert main(["audit", "run", "--export", "folder", "--out", "new"]) == 0
    said = capsys.readouterr().out
    assert "2 rows, 2 of them hard links; 1 label changed; 1 row whose image is elsewhere, or missing, is" in said
    assert labels_by_content(folder / "new").keys() == {(folder / "a.png").read_bytes()}
    assert len(list((folder / "new/y").iterdir())) == 2


def test_images_in_arrays_get_names_that_the_next_run_reads(folder):
    ids = ["shelf/", "...", ".png", "3", "x/3.png", "x/.3"]
    given = ["a", "b", "a", "a", "a", "a"]
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8)
    np.savez(folder / "images.npz", x=images, labels=np.array(given), ids=np.array(ids))
    make_run(folder / "run", "images.npz", ids, given, given, ["a", "b"])
    found = read_audit(folder / "run")
    write_folder(found, find_originals(found), folder / "new")
    rows = read_rows("new", Own())
    assert set(rows.ids) == {"a/0.png", "b/1.png", "a/png.png", "a/3.png", "a/3-2.png", "a/3-3.png"}
    wanted = {image.tobytes(): label for image, label in zip(images, given, strict=True)}
    assert {image.tobytes(): label for image, label in zip(np.asarray(rows.x), rows.given, strict=True)} == wanted


def test_a_thousand_images_of_one_name_are_numbered_without_trying_each_number_each_time(monkeypatch):
    """A table that names the image of each patient, each in its own folder."""
    tried = []
    real = repair.PurePosixPath.with_name
    monkeypatch.setattr(repair.PurePosixPath, "with_name", lambda path, name: tried.append(name) or real(path, name))
    ids = [f"{number}/scan.png" for number in range(1000)]
    data = repair.Originals(Path("t.csv"), make_columns(ids, given=["cat"] * 1000), pa.table({}), list(map(Path, ids)))
    places = repair._places(data, ["cat"] * 1000, range(1000))
    assert places == ["cat/scan.png", *(f"cat/scan-{number}.png" for number in range(2, 1001))]
    assert len(tried) == 999


def test_parts_of_the_data_folder_stay_what_they_are(folder):
    write_digits(folder / "all" / "train", per_class=8)
    write_digits(folder / "all" / "test", per_class=4, share=0.0, seed=3)
    (folder / "all" / "verified.txt").unlink()
    for path in list((folder / "all/test").rglob("*.png")):  # none that is also in training
        if list((folder / "all/train").rglob(path.name)):
            path.unlink()
    ids = sorted(str(path.relative_to("all")) for path in Path("all/train").rglob("*.png"))
    given = [name.split("/")[1] for name in ids]
    make_run(folder / "run", "all", ids, given, ["d0"] * len(ids), NAMES)
    found = read_audit(folder / "run")
    corrected = list(found.in_order("corrected"))
    write_folder(found, find_originals(found), folder / "new")
    made = sorted(path.parent.name for path in Path("new/train").rglob("*.png"))
    assert made == sorted(corrected)
    assert tree(Path("new/test")) == tree(Path("all/test"))


def test_a_class_of_test_images_that_only_verdicts_name_is_repaired(folder):
    for place, name in enumerate(("a/1", "a/2", "b/1", "test/c/1")):
        path = folder / "all" / (name if name.startswith("test") else f"train/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), 60 * place, np.uint8)).save(f"{path}.png")
    ids = [f"train/{name}.png" for name in ("a/1", "a/2", "b/1")]
    labels = list("abc")
    make_run(folder / "run", "all", ids, ["a", "a", "b"], ["a", "a", "b"], labels, verified=["c", None, None])
    found = read_audit(folder / "run")
    write_folder(found, find_originals(found), folder / "new")
    copies = sorted(str(path.relative_to("new")) for path in Path("new").rglob("*.png"))
    assert copies == ["test/c/1.png", "train/a/2.png", "train/b/1.png", "train/c/1.png"]


def test_the_only_folder_is_a_label_where_verdicts_of_the_run_name_others(folder):
    ids = [f"cat/{year}/{row}.png" for year in (2020, 2021) for row in range(2)]
    for place, name in enumerate(ids):
        (folder / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), 60 * place, np.uint8)).save(folder / "all" / name)
    verified = ["cat", "dog", None, None]
    make_run(folder / "run", "all", ids, ["cat"] * 4, ["cat", "dog", "dog", "cat"], ["cat", "dog"], verified=verified)
    found = read_audit(folder / "run")
    write_folder(found, find_originals(found), folder / "new")
    copies = {str(path.relative_to("new")) for path in Path("new").rglob("*.png")}
    assert copies == {"cat/2020/0.png", "dog/2020/1.png", "dog/2021/0.png", "cat/2021/1.png"}
    write_table(found, find_originals(found), "csv", folder / "new.csv")
    assert read_rows("new.csv", Own()).given == ("cat", "dog", "dog", "cat")


@pytest.mark.parametrize("clean", ["checked", "photos/clean"])
@pytest.mark.parametrize("absolute", [False, True])
def test_folders_beside_the_data_are_found_beside_data_that_are_named(folder, monkeypatch, clean, absolute):
    for name in ("photos/a/1.png", "photos/b/2.png", f"{clean}/a/3.png"):
        (folder / "then" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), int(name[-5]), np.uint8)).save(folder / "then" / name)
    start = folder / "then" if absolute else Path()
    own = {"clean": str(start / clean)}
    make_run(folder / "run", start / "photos", ["a/1.png", "b/2.png"], list("ab"), list("ba"), ["a", "b"], own=own)
    found = read_audit(folder / "run")
    (folder / "then").rename(folder / "now")
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    originals = find_originals(found, "../now/photos")
    write_table(found, originals, "csv", folder / "new.csv")
    assert originals.columns.ids == ("a/1.png", "b/2.png", f"{Path(clean).name}/a/3.png")
    assert read_rows(str(folder / "new.csv"), Own()).given == ("b", "a", "a")
    shutil.move(folder / "now" / clean, folder / "sub/checked")
    if clean == "checked" and not absolute:  # where it lay when the run was made
        assert len(find_originals(found, "../now/photos").columns.ids) == 3
    shutil.rmtree(folder / "sub/checked")
    with pytest.raises(ValueError, match=rf"no folder \.\./now/{clean}, which .* used with .*photos; put it there"):
        find_originals(found, "../now/photos")


def test_a_list_of_verdicts_is_not_needed_again(folder):
    np.savez(folder / "items.npz", x=np.eye(6), labels=np.array(list("ababab")), x_test=np.eye(6)[:1], y_test=["a"])
    ids, verified = [str(row) for row in range(6)], ["b", *[None] * 5]
    own = {"verified": "gone.txt"}
    make_run(folder / "run", "items.npz", ids, list("ababab"), list("bbabab"), ["a", "b"], own=own, verified=verified)
    found = read_audit(folder / "run")
    test = (set(find_originals(found).columns.ids) - set(ids)).pop()
    found.record["data"]["measured_by"] = [[test, "b", "random"]]
    assert write_table(found, find_originals(found), "csv", folder / "new.csv").changed == 2
    rows = read_rows("new.csv", Own())
    assert (rows.given, rows.verified) == ((*"bbabab", "b"), ("b", *[None] * 5, "b"))


def test_data_that_moved_or_changed_are_a_sentence(photos):
    found, _ = photos
    shutil.move("photos", "elsewhere")
    with pytest.raises(ValueError, match="are not there; say with --data"):
        find_originals(found)
    assert len(find_originals(found, "elsewhere").columns.ids) == 36
    next(Path("elsewhere").rglob("*.png")).unlink()
    with pytest.raises(ValueError, match="the data were changed since"):
        find_originals(found, "elsewhere")


def test_labels_that_are_no_names_of_folders_are_refused(folder):
    (folder / "img").mkdir()
    lines = ["path,label"]
    for row in range(4):
        Image.fromarray(np.full((4, 4), 60 * row, np.uint8)).save(folder / f"img/{row}.png")
        lines.append(f"img/{row}.png,{['../up', 'b'][row % 2]}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    ids = [f"img/{row}.png" for row in range(4)]
    make_run(folder / "run", "list.csv", ids, ["../up", "b"] * 2, ["../up", "b"] * 2, ["../up", "b"])
    found = read_audit(folder / "run")
    before = tree(folder)
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        write_folder(found, find_originals(found), folder / "new")
    assert tree(folder) == before


@pytest.mark.parametrize("label", ["../../escaped", "/tmp/escaped", "a/b", ".hidden", "a\\b"])
def test_images_that_are_verified_as_what_is_no_name_of_a_folder_stay_inside(folder, label):
    for row in range(4):
        path = folder / f"pets/{['cat', 'dog'][row % 2]}/{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), 60 * row, np.uint8)).save(path)
    ids, given = [f"{name}/{row}.png" for row, name in enumerate(["cat", "dog"] * 2)], ["cat", "dog"] * 2
    make_run(folder / "run", "pets", ids, given, [label, *given[1:]], ["cat", "dog", label])
    found = read_audit(folder / "run")
    before = tree(folder)
    with pytest.raises(ValueError, match="cannot be the name of a folder; use --export csv"):
        write_folder(found, find_originals(found), folder / "sub" / "new")
    assert tree(folder) == before


def test_nothing_is_left_of_a_table_that_cannot_be_written(photos, monkeypatch):
    def fails(*arguments):
        raise OSError(28, "full")

    monkeypatch.setattr(repair.pa.parquet, "write_table", fails)
    before = sorted(os.listdir())
    with pytest.raises(OSError, match="full"):
        write_table(photos[0], find_originals(photos[0]), "parquet", Path("new.parquet"))
    assert sorted(os.listdir()) == before
    monkeypatch.undo()
    assert pyarrow.parquet is repair.pa.parquet
