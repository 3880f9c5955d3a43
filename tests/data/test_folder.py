"""Folders of images: what is a label, what is verified, what is passed over, what is refused."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fasten.data.decoding import Decoding
from fasten.data.folder import read_folder
from fasten.data.rows import Rows
from fasten.data.table import read_table


def draw(root: Path, *names: str, first: int = 0) -> None:
    """Small grey images; each is another one."""
    for value, name in enumerate(names, start=first):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 3), value).save(path)


def pixels(rows: Rows) -> list[int]:
    return np.asarray(rows.x)[:, 0, 0, 0].tolist()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    draw(root, "cat/1.png", "cat/2.png", "dog/1.png", "dog/puppies/small/3.png")
    return root


def listed(pets: Path, text: str, **options: Any) -> Rows:
    path = pets.parent / "verified.csv"
    path.write_text(text, encoding="utf-8")
    return read_folder(pets, verified=path, **options)


def test_the_first_folder_is_the_label_at_any_depth(pets):
    rows = read_folder(pets)
    assert rows.name == "pets"
    assert rows.ids == ("cat/1.png", "cat/2.png", "dog/1.png", "dog/puppies/small/3.png")
    assert rows.given == ("cat", "cat", "dog", "dog")
    assert rows.verified == rows.split == rows.picked == (None,) * 4
    assert rows.class_names == ("cat", "dog")
    assert rows.x.shape == (4, 3, 4, 1)
    assert pixels(rows) == [0, 1, 2, 3]
    assert rows.notes == ()


def test_folders_of_one_name_beside_the_data_are_told_apart(tmp_path):
    """As in train/images, val/images and test/images."""
    for first, part in enumerate(("train/images", "val/images", "test/images", "checked")):
        draw(tmp_path / part, "cat/0.png", "dog/0.png", first=10 * first)
    places = {"valid": tmp_path / "val" / "images", "test": tmp_path / "test" / "images"}
    rows = read_folder(tmp_path / "train" / "images", clean=tmp_path / "checked", **places)
    assert rows.ids[2:] == (
        *("checked/cat/0.png", "checked/dog/0.png"),
        *("valid/cat/0.png", "valid/dog/0.png", "test/cat/0.png", "test/dog/0.png"),
    )
    assert read_folder(tmp_path / "train" / "images", test=places["test"]).ids[2:] == (
        "images/cat/0.png",
        "images/dog/0.png",
    )


def test_other_files_are_passed_over_and_counted(pets):
    for name in (".hidden.png", "cat/.DS_Store", "cat/notes.txt", "dog/model.json", "README.md", "Makefile"):
        (pets / name).write_text("x")
    (pets / ".cache").mkdir()
    draw(pets, "loose.png", ".cache/a.png")
    (pets / "cat" / "upper.PNG").write_bytes((pets / "cat" / "1.png").read_bytes())
    rows = read_folder(pets)
    assert len(rows) == 5
    assert rows.notes == (
        "pets: not used: files that are not images (4: .json, .md, .txt)",
        "pets: not used: hidden files (3)",
        "pets: not used: images outside classes (1)",
    )


def test_a_list_of_names_says_that_labels_are_right(pets):
    rows = listed(pets, "cat/2.png\r\n\n./dog\\puppies\\small\\3.png \n")
    assert rows.verified == (None, "cat", None, "dog")
    assert rows.picked == (None, "random", None, "random")
    assert rows.given == ("cat", "cat", "dog", "dog")


@pytest.mark.parametrize(
    "text",
    [
        "cat/1.png,dog\n2.png\n",
        "name,label\ncat/1.png,dog\ncat/2.png,\n",
        '\ufefffile_name;verified_label\n"cat/1.png";dog\ncat/2.png;cat\n',
        "label\tpath\ndog\tcat/1.png\n\tcat/2.png\n",
        "cat/1.png|dog\ncat/2.png|cat\ncat/2.png\n",
    ],
)
def test_a_list_may_hold_the_right_label_behind_the_name(pets, text):
    rows = listed(pets, text)
    assert rows.verified == ("dog", "cat", None, None)
    assert rows.given == ("cat", "cat", "dog", "dog")


@pytest.mark.parametrize("start", ["", "absolute"])
def test_names_may_be_paths_from_the_current_folder(pets, monkeypatch, start):
    monkeypatch.chdir(pets.parent.parent)
    path = pets if start else pets.relative_to(pets.parent.parent)
    assert listed(pets, f"{path}/cat/1.png\n{path}/dog/1.png,cat\n").verified == ("cat", None, "cat", None)


def test_where_a_column_of_verified_labels_is_blank_nobody_looked(pets):
    """As in a table, of which such a list may be two columns."""
    rows = listed(pets, "id,verified_label\ncat/1.png,dog\ncat/2.png,\ndog/1.png, \ndog/puppies/small/3.png\n")
    assert rows.verified == ("dog", None, None, None)
    with pytest.raises(ValueError, match="has no verdict below its first line"):
        listed(pets, "id,verified_label\ncat/1.png,\n")


def test_a_name_with_a_line_break_is_read_as_it_is_written(pets):
    draw(pets, "cat/new\nline.png", "cat/odd\u2028line.png")
    text = 'id,label,picked\n"cat/new\nline.png",dog,random\ncat/odd\u2028line.png,dog,chosen\ncat/1.png,cat,random\n'
    assert listed(pets, text).verified == ("cat", None, "dog", "dog", None, None)
    turned = '\n\nlabel;id\ndog;"cat/new\nline.png"\n\n'
    assert listed(pets, turned).verified == (None, None, "dog", None, None, None)
    with pytest.raises(ValueError, match=r"line 4: there is no image 'cat/9.png'"):
        listed(pets, text.replace("cat/odd\u2028line.png", "cat/9.png"))
    with pytest.raises(ValueError, match="line 2: a quote is opened there and not closed"):
        listed(pets, 'id,label\n"cat/1.png,dog\ncat/2.png,dog\n')


def test_a_quote_that_is_not_closed_is_a_part_of_its_line(pets):
    draw(pets, 'cat/"odd.png', '"cat/5.png', 'cat/5".png')
    found = listed(pets, '"cat/5.png\ncat/1.png,dog\ncat/"odd.png,dog\ncat/5".png\n')
    said = {name: label for name, label in zip(found.ids, found.verified, strict=True) if label}
    assert said == {'"cat/5.png': '"cat', "cat/1.png": "dog", 'cat/"odd.png': "dog", 'cat/5".png': "cat"}


def test_a_list_may_say_how_rows_were_picked(pets):
    rows = listed(pets, "name,label,picked\ncat/1.png,dog,random\ncat/2.png,,chosen\n")
    assert rows.picked == ("random", "chosen", None, None)


def test_a_comma_may_be_a_part_of_a_name(pets):
    draw(pets, "cat/a, b.png")
    assert listed(pets, "cat/a, b.png\n").verified == (None, None, "cat", None, None)


COMPOSED, APART = (unicodedata.normalize(form, "zéro/été.png") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(("stored", "written"), [(COMPOSED, APART), (APART, COMPOSED)])
@pytest.mark.parametrize("ending", ["\n", ",dog\n"])
def test_a_name_is_found_in_either_form_of_unicode(pets, stored, written, ending):
    draw(pets, stored)
    for name in (written, written.partition("/")[2], f"./{written}"):
        found = listed(pets, name + ending)
        said = {name: label for name, label in zip(found.ids, found.verified, strict=True) if label}
        assert said == {stored: "dog" if "dog" in ending else stored.partition("/")[0]}


def test_a_model_knows_its_classes_in_either_form_of_unicode(tmp_path):
    stored, known = (unicodedata.normalize(form, "Röhre") for form in ("NFD", "NFC"))
    draw(tmp_path / "new", f"{stored}/1.png", "tap/1.png", "fox/1.png")
    rows = read_folder(tmp_path / "new", class_names=[known, "tap"])
    assert dict(zip(rows.ids, rows.given, strict=True)) == {
        f"{stored}/1.png": known,
        "fox/1.png": None,
        "tap/1.png": "tap",
    }
    assert "names of folders that are not classes of the model (1)" in rows.notes[0]


def test_new_data_without_images_are_refused_with_what_the_folder_holds(tmp_path):
    (tmp_path / "new").mkdir()
    with pytest.raises(ValueError, match="new holds no images; give a folder of images"):
        read_folder(tmp_path / "new", class_names=["cat", "dog"])
    (tmp_path / "new" / "1.HEIC").touch()
    with pytest.raises(ValueError, match=r"new holds no images \(\.heic files are not read; JPEG and PNG are\)"):
        read_folder(tmp_path / "new", class_names=["cat", "dog"])


def test_a_name_in_a_form_that_may_be_either_of_two_is_refused(pets):
    either = "cat/\u00e9e\u0301.png"
    draw(pets, *(unicodedata.normalize(form, either) for form in ("NFC", "NFD")))
    with pytest.raises(ValueError, match="line 1: there is no image"):
        listed(pets, f"{either},dog\n")
    assert listed(pets, f"{unicodedata.normalize('NFD', either)},dog\n").verified.count("dog") == 1


def test_a_name_that_a_comma_cuts_off_is_to_be_put_in_quotes(pets):
    draw(pets, "cat/sun, sand.png")
    for text in ("cat/sun, sand.png,dog\n", "name,label\ncat/sun, sand.png,dog\n"):
        with pytest.raises(ValueError, match=r"did you mean .*sand.png.\? \(a name that holds a comma must be in "):
            listed(pets, text)
    assert listed(pets, '"cat/sun, sand.png",dog\n').verified.count("dog") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat/9.png\n", r"verified.csv, line 1: there is no image 'cat/9.png' .* did you mean 'cat/\d.png'"),
        ("1.png\n", "there is no image '1.png' .* did you mean 'cat/1.png' or 'dog/1.png'"),
        ("id,given,suggested,p_wrong,picked,verdict\ncat/1.png,cat,dog,0.9,chosen,dog\n", "verified.csv is a review"),
        ("\ncat/1.png\nbird/1.png,cat", "line 3: there is no image 'bird/1.png' .* did you mean 'cat/1.png'"),
        (
            "cat/1.png,Dog\n",
            "pets: the labels 'Dog' and 'dog' differ only in how they are written; write them the same way",
        ),
        ("cat/1.png,-1\n", "'cat/1.png' is verified as '-1', which is no row's given label; leave the"),
        (
            "cat/1.png,0\ndog/1.png,1\n",
            "pets: rows are verified as '0', '1', …, and none of these is a given label, but 'cat' is",
        ),
        ("cat/1.png,cat\ncat/1.png,dog", "pets: 'cat/1.png' is verified as 'cat' and as 'dog'; keep the one that is"),
        ("cat/1.png,dog\ncat/1.png", "'cat/1.png' is verified as 'dog' and as 'cat'"),
        ("cat/1.png,DOG \n", "the labels 'DOG' and 'dog' differ only in how they are written"),
        ('[{"id":1} ' * 20_000, r"line 1: there is no image '\[.{10,200}' in .*; write its path, such as cat/1.jpg"),
        ("filename,class\ncat/1.png,dog\n", "such as cat/1.jpg, or, if this line names the columns, name,label$"),
        ("cat/1.png,dog\nfilename,class\n", "line 2: there is no image 'filename' in .*, such as cat/1.jpg$"),
        (" \n\n", "verified.csv is empty; list in it what somebody checked"),
        ("../x.png\n", "line 1: '../x.png' leads out of the folder"),
        ("/etc/passwd\n", "line 1: '/etc/passwd' leads out of the folder"),
        ("name,label,picked\ncat/1.png,dog,always\n", "unknown way of picking 'always'"),
        (
            "id,width,label,verified_label\ncat/1.png,3,cat,dog\n",
            "a list of verified names has .* but this has 'width', 'verified_label' too; take them out",
        ),
    ],
)
def test_a_bad_list_is_refused_with_its_line(pets, text, message):
    with pytest.raises(ValueError, match=message):
        listed(pets, text)


def test_a_list_in_another_encoding_is_refused_with_its_line(pets):
    path = pets.parent / "list.txt"
    path.write_bytes("cat/1.png\ncat/café.png\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"list.txt: line 2 is not UTF-8 \(byte 0xe9\); save the file as UTF-8"):
        read_folder(pets, verified=path)


def test_images_of_a_clean_folder_are_verified_rows_of_their_own(pets):
    draw(pets.parent / "clean", "cat/1.png", "dog/7.png", first=50)
    rows = read_folder(pets, clean=pets.parent / "clean")
    assert rows.ids[4:] == ("clean/cat/1.png", "clean/dog/7.png")
    assert rows.given[4:] == (None, None)
    assert rows.verified == (None,) * 4 + ("cat", "dog")
    assert rows.picked[4:] == ("random", "random")
    assert pixels(rows) == [0, 1, 2, 3, 50, 51]


def test_a_clean_image_that_also_lies_among_the_noisy_ones_verifies_that_row(pets):
    clean = pets.parent / "clean"
    draw(clean, "cat/new.png", first=50)
    (clean / "dog").mkdir()
    (clean / "dog" / "was 2.png").write_bytes((pets / "cat" / "2.png").read_bytes())
    rows = read_folder(pets, clean=clean)
    assert rows.ids[4:] == ("clean/cat/new.png",)
    assert rows.given == ("cat", "cat", "dog", "dog", None)
    assert rows.verified == (None, "dog", None, None, "cat")
    assert rows.picked == (None, "random", None, None, "random")


@pytest.mark.parametrize(
    ("lines", "ways"),
    [
        ("cat/2.png,dog,chosen\n", ("chosen", "random")),
        ("cat/2.png,dog,chosen\nclean/cat/new.png,cat,chosen\n", ("chosen", "chosen")),
        ("cat/2.png,dog,\n", ("random", "random")),
        ("cat/2.png,dog,chosen\ncat/2.png,dog,random\n", ("random", "random")),
        ("dog/1.png,dog,chosen\n", ("random", "random")),
    ],
)
def test_images_of_a_clean_folder_count_as_random_unless_a_list_calls_them_chosen(pets, lines, ways):
    clean = pets.parent / "clean"
    draw(clean, "cat/new.png", first=50)
    (clean / "dog").mkdir()
    (clean / "dog" / "was 2.png").write_bytes((pets / "cat" / "2.png").read_bytes())
    rows = listed(pets, f"name,label,picked\n{lines}", clean=clean)
    assert (rows.picked[1], rows.picked[4]) == ways
    assert rows.verified[1] == "dog"


def test_a_clean_folder_inside_the_data_is_no_class(pets):
    draw(pets, "good/cat/5.png", first=50)
    rows = read_folder(pets, clean=pets / "good")
    assert rows.class_names == ("cat", "dog")
    assert rows.ids[4:] == ("good/cat/5.png",)


def test_one_clean_image_in_two_classes_is_refused(pets):
    clean = pets.parent / "clean"
    draw(clean, "cat/1.png", first=50)
    draw(clean, "dog/1.png", first=50)
    with pytest.raises(
        ValueError, match=r"'clean/cat/1.png' and 'clean/dog/1.png' are the same image, verified as 'cat' and"
    ):
        read_folder(pets, clean=clean)


def test_a_list_and_a_clean_folder_may_not_contradict_each_other(pets):
    clean = pets.parent / "clean"
    clean.mkdir()
    (clean / "dog").mkdir()
    (clean / "dog" / "2.png").write_bytes((pets / "cat" / "2.png").read_bytes())
    with pytest.raises(ValueError, match=r"'cat/2.png' is verified as 'dog' and as 'cat'"):
        listed(pets, "cat/2.png\n", clean=clean)


def test_folders_may_be_called_by_the_parts_of_a_split(tmp_path):
    root = tmp_path / "pets"
    draw(root, "train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "test/dog/2.png", "clean/dog/3.png")
    rows = read_folder(root)
    assert rows.ids == ("train/cat/1.png", "train/dog/1.png", "clean/dog/3.png", "val/cat/1.png", "test/dog/2.png")
    assert rows.split == ("train", "train", None, "valid", "test")
    assert rows.given == ("cat", "dog", None, "cat", "dog")
    assert rows.verified == (None, None, "dog", None, None)
    assert listed(root, "cat/1.png\ntrain/dog/1.png").verified[:2] == ("cat", "dog")


def test_folders_of_the_split_may_lie_elsewhere(pets):
    draw(pets.parent / "held out", "cat/1.png", first=90)
    rows = read_folder(pets, test=pets.parent / "held out")
    assert rows.split == (None,) * 4 + ("test",)
    assert (rows.ids[4], rows.given[4]) == ("held out/cat/1.png", "cat")


def test_a_test_image_that_also_stands_in_training_is_refused(pets):
    held = pets.parent / "test"
    draw(held, "cat/5.png", first=90)
    (held / "cat" / "copy.png").write_bytes((pets / "dog" / "1.png").read_bytes())
    with pytest.raises(ValueError, match=r"1 of 2 test rows is also in training: 'test/cat/copy.png' .* 'dog/1.png'"):
        read_folder(pets, test=held)


@pytest.mark.parametrize("name", ["Dog", "dogs"])
@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_class_that_only_images_to_measure_by_have_is_refused(pets, part, name):
    draw(pets.parent / "more", f"{name}/1.png", first=50)
    with pytest.raises(
        ValueError, match=f"pets: {part} rows have the label '{name}', and no training row has it; did you mean 'dog'"
    ):
        read_folder(pets, **{part: pets.parent / "more"})


def test_a_class_that_images_are_only_verified_as_is_taken_with_a_note(pets):
    """As rows of a table are."""
    draw(pets.parent / "clean", "fox/1.png", "cat/9.png", first=50)
    by_list = listed(pets, "cat/1.png,fox\ncat/2.png,cat\n")
    by_folder = read_folder(pets, clean=pets.parent / "clean")
    (pets / "pets.csv").write_text("path,label,verified_label\ncat/1.png,cat,fox\ncat/2.png,cat,\ndog/1.png,dog,cat\n")
    by_table = read_table(pets / "pets.csv")
    for rows, first in ((by_list, "cat/1.png"), (by_folder, "clean/fox/1.png"), (by_table, "cat/1.png")):
        assert rows.class_names == ("cat", "dog", "fox")
        assert f"{rows.name}: no row has the given label 'fox', but {first!r} is verified as it; is it" in rows.notes[0]
    draw(pets.parent / "test", "fox/1.png", first=60)
    assert read_folder(pets, clean=pets.parent / "clean", test=pets.parent / "test").judged_codes()[-1] == 2


def test_a_trained_model_takes_no_verdict_of_a_class_that_it_does_not_know(pets):
    with pytest.raises(ValueError, match=r"verified.csv, line 2: unknown label 'fox'; known: cat, dog"):
        listed(pets, "cat/1.png\ncat/2.png,fox\n", class_names=["cat", "dog"])


def test_folders_that_cannot_be_data_are_refused(pets, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        read_folder(pets, clean=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere"):
        read_folder(pets, verified=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match="holds no images in folders; put each image into a folder named after its label"
    ):
        read_folder(tmp_path / "empty")
    (tmp_path / "phone" / "cat").mkdir(parents=True)
    (tmp_path / "phone" / "cat" / "1.HEIC").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds no images in folders \(.heic files are not read; JPEG and PNG are\);"):
        read_folder(tmp_path / "phone")
    draw(tmp_path / "flat", "1.png", "2.png")
    with pytest.raises(ValueError, match="flat holds no images in folders"):
        read_folder(tmp_path / "flat")
    for part in ("clean", "valid", "test"):
        with pytest.raises(ValueError, match="flat holds no images in folders"):
            read_folder(pets, **{part: tmp_path / "flat"})
    draw(tmp_path / "one", "cat/1.png", "cat/old/2.png")
    with pytest.raises(ValueError, match="one has only the label 'cat'; a classifier needs"):
        read_folder(tmp_path / "one")
    with pytest.raises(ValueError, match=r"is given as the .* give each part its own folder"):
        read_folder(pets, clean=pets)
    (pets / "bird").mkdir()
    with pytest.raises(ValueError, match=r"the class 'bird' in .* has no images; put some there, or remove the folder"):
        read_folder(pets)


def test_classes_that_differ_in_case_are_refused(pets):
    draw(pets, "Cat/9.png", first=60)
    with pytest.raises(ValueError, match="the labels 'Cat' and 'cat' differ only in how they are written"):
        read_folder(pets)


def test_two_folders_of_one_part_are_refused(tmp_path):
    draw(tmp_path, "pets/train/cat/1.png", "pets/train/dog/1.png", "pets/val/cat/2.png", "more/cat/3.png")
    with pytest.raises(ValueError, match="hold the valid images; keep one of them"):
        read_folder(tmp_path / "pets", valid=tmp_path / "more")


def test_links_that_lead_out_are_refused_and_others_are_followed_once(pets, tmp_path):
    draw(tmp_path, "outside/5.png", first=50)
    (pets / "cat" / "link.png").symlink_to(pets / "dog" / "1.png")
    with pytest.raises(
        ValueError, match=r"the file '.*dog/1.png' occurs more than once \('cat/link.png' and 'dog/1.png'\)"
    ):
        read_folder(pets)
    (pets / "cat" / "link.png").unlink()
    (pets / "alias").symlink_to(pets / "cat")
    assert read_folder(pets).notes == ("pets: not used: links to folders (1)",)
    (pets / "cat" / "notes.txt").symlink_to(tmp_path / "outside" / "5.png")
    (pets / "cat" / "nowhere").symlink_to(tmp_path / "nothing")
    notes = ("pets: not used: files that are not images (2: .txt)", "pets: not used: links to folders (1)")
    assert read_folder(pets).notes == notes
    (pets / "cat" / "link.png").symlink_to(tmp_path / "outside" / "5.png")
    with pytest.raises(ValueError, match=r"'cat/link.png' leads out of the folder"):
        read_folder(pets)
    (pets / "cat" / "link.png").unlink()
    (pets / "bird").symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="'bird' leads out of the folder"):
        read_folder(pets)


def test_the_data_folder_itself_may_be_a_link(pets):
    link = pets.parent / "linked"
    link.symlink_to(pets)
    assert read_folder(link).ids == read_folder(pets).ids


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX systems only")
def test_a_file_name_that_is_no_text_is_refused(pets):
    try:
        Path(os.fsdecode(os.fsencode(pets) + b"/cat/\xff.png")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes text only")
    with pytest.raises(ValueError, match="is not UTF-8; rename it"):
        read_folder(pets)


def test_unreadable_images_are_left_out_with_their_verdicts(pets):
    (pets / "cat" / "2.png").write_bytes(b"broken")
    rows = listed(pets, "cat/2.png\ncat/1.png")
    assert rows.ids == ("cat/1.png", "dog/1.png", "dog/puppies/small/3.png")
    assert rows.verified == ("cat", None, None)
    assert "1 image that cannot be read is left out: cat/2.png (not an image of a known format)" in rows.notes[0]
    with pytest.raises(ValueError, match=r"some of the 4 images cannot be read: cat/2.png"):
        read_folder(pets, how=Decoding(max_bad=0))
    (pets / "dog" / "1.png").write_bytes(b"broken")
    assert "2 images that cannot be read are left out: cat/2.png, dog/1.png (not an image" in read_folder(pets).notes[0]


def test_a_trained_model_takes_images_without_labels(pets):
    draw(pets, "loose.png", "bird/1.png", first=60)
    rows = read_folder(pets, class_names=["cat", "dog"], how=Decoding(size=(5, 6), channels=3))
    assert dict(zip(rows.ids, rows.given, strict=True)) == {
        **{"cat/1.png": "cat", "cat/2.png": "cat", "dog/1.png": "dog", "dog/puppies/small/3.png": "dog"},
        **{"loose.png": None, "bird/1.png": None},
    }
    assert rows.x.shape == (6, 5, 6, 3)
    assert rows.notes == ("pets: not used: names of folders that are not classes of the model (1)",)


@pytest.mark.parametrize("around", ["pets", "train/pets", "archive/2024/pets"])
def test_a_folder_around_that_of_the_labels_is_refused_with_the_right_one(tmp_path, around):
    draw(tmp_path / "data" / around, "cat/1.png", "dog/1.png", "dog/puppies/2.png")
    root = tmp_path / "data"
    label = around.removeprefix("train/").split("/")[0]
    with pytest.raises(
        ValueError, match=f"has only the label '{label}': .*if cat, dog are labels, give (.*)"
    ) as caught:
        read_folder(root)
    assert read_folder(str(caught.value).rpartition("give ")[2]).class_names == ("cat", "dog")


def test_the_only_folder_is_a_label_where_verdicts_name_others(tmp_path):
    draw(tmp_path / "parts", "fine/line 1/1.png", "fine/line 2/2.png", "fine/line 2/3.png")
    (tmp_path / "checked.csv").write_text("name,label\nfine/line 1/1.png,broken\nfine/line 2/2.png,fine\n")
    rows = read_folder(tmp_path / "parts", verified=tmp_path / "checked.csv")
    assert rows.class_names == ("broken", "fine")
    (tmp_path / "checked.csv").write_text("name,label\nfine/line 1/1.png,line 2\n")
    with pytest.raises(ValueError, match=r"has only the label 'fine': .* give .*fine$"):
        read_folder(tmp_path / "parts", verified=tmp_path / "checked.csv")
