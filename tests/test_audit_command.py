"""`fasten audit` as a user meets it, and the commands of docs/report.md."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import refuse, tree
from fasten.audit.stored import audit_probabilities
from fasten.cli import main
from fasten.commands.console import show_table
from fasten.data.rows import Rows
from fasten.own import Own, read_rows
from finished_runs import make_run
from own_data import write_digits

PAGE = (Path(__file__).parent.parent / "docs" / "report.md").read_text(encoding="utf-8")
TRAIN = "train photos --verified verified.txt --device cpu --epochs 24 --no-references --out runs/photos"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """photos/ with verified.txt, and a run of it in runs/photos, which no test may change."""
    place = tmp_path_factory.mktemp("trained")
    _, truth = write_digits(place / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(shlex.split(TRAIN)) == 0
    (place / "truth.json").write_text(json.dumps(truth))
    return place


@pytest.fixture
def place(trained, folder):
    """The same, in the current folder."""
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    return folder


def said(command: str, capsys) -> str:
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    return capsys.readouterr().out


def fill_in(path: Path, truth: dict[str, str]) -> None:
    """What a reviewer does who is always right."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        line["verdict"] = truth[line["id"]]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


def share_right(rows: Rows, truth: dict[str, str]) -> float:
    return sum(truth[name] == label for name, label in zip(rows.ids, rows.given, strict=True)) / len(rows)


def test_the_commands_of_the_page_go_from_wrong_labels_to_better_ones(folder):
    _, truth = write_digits(folder / "photos", per_class=60, num_verified=100)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for command in block.strip().splitlines():
            program, *arguments = shlex.split(command)
            assert program == "fasten"
            more = ["--device", "cpu", "--no-references"] if arguments[0] == "train" else []
            assert main([*arguments, *more]) == 0, command
            if arguments[-1] == "review.csv" and "--next" in arguments:
                fill_in(folder / "review.csv", truth)
    assert share_right(read_rows("photos", Own()), truth) < 0.75
    assert share_right(read_rows("photos-repaired.csv", Own()), truth) > 0.75
    repaired = {path.read_bytes(): path.parent.name for path in (folder / "photos-repaired").rglob("*.png")}
    right = [repaired[(folder / "photos" / name).read_bytes()] == label for name, label in truth.items()]
    assert sum(right) / len(right) > 0.9
    with (folder / "verified-2.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert 100 < len(lines) <= 140
    assert {line["picked"] for line in lines} == {"random", "chosen"}
    assert all(truth[line["id"]] == line["label"] for line in lines)
    found = json.loads((folder / "runs/photos-2/record.json").read_text())["evaluation"]["evidence"]
    assert found["num_random"] == sum(line["picked"] == "random" for line in lines)


def test_the_summary_and_the_top_rows_are_printed(place, capsys):
    before = tree(place)
    text = said("audit runs/photos --top 3", capsys)
    lines = text.splitlines()
    assert re.match(r"\d+ of 120 labels count as wrong, \d+ of them by a verdict; about \d+ are expected", lines[0])
    assert "60 rows verified at random, 20 of them held back" in text
    assert "report: runs/photos/report.html" in text
    assert lines[-4].split() == ["id", "given", "suggested", "p_wrong", "p_suggested", "is_issue"]
    as_json = json.loads(said("audit runs/photos --top 3 --json", capsys))
    assert [row["id"] for row in as_json["top"]] == [line.split()[0] for line in lines[-3:]]
    assert as_json["evidence"]["precision"].keys() == {"k", "n", "low", "high"}
    assert tree(place) == before, "looking changes nothing"


def rows_and_run(folder, believed, verified, **more):
    """A table of 40 rows, half of them cats, whose labels are all right, and a run that believes something else."""
    given, names = ["cat", "dog"] * 20, [f"r{row}" for row in range(40)]
    lines = [f"{name},{row},{label}" for row, (name, label) in enumerate(zip(names, given, strict=True))]
    (folder / "items.csv").write_text("\n".join(["id,x,label", *lines]) + "\n")
    labels = [given[row] if row in verified else None for row in range(40)]
    swapped = ["dog" if (label == "cat") == (row in believed) else "cat" for row, label in enumerate(given)]
    held = np.isin(np.arange(40), list(verified)[::2])
    make_run(folder / "run", "items.csv", names, given, swapped, ["cat", "dog"], verified=labels, held=held, **more)


@pytest.mark.parametrize(
    ("believed", "verified", "doubt"),
    [
        ({}, range(12), None),
        (
            {30, 31},
            range(12),
            "nothing shows that the corrections do more good than harm: the model changes 2 labels; of the held-back "
            "rows, judged without their verdicts, none would be changed; look at some",
        ),
        ({0, 31}, range(12), "the only correction of a held-back row, judged without its verdict, is wrong: keep the"),
        ({1}, range(12), None),
        ({30}, (), "no row was verified at random, so nothing shows how many corrections are right"),
    ],
    ids=["nothing changed", "none held back", "mistaken", "settled by a verdict", "none verified"],
)
def test_a_repaired_copy_comes_with_a_warning_where_nobody_knows_how_right_it_is(
    folder, capsys, believed, verified, doubt
):
    rows_and_run(folder, believed, verified)
    text = said("audit run --export csv --out repaired.csv", capsys)
    assert ("\nwarning: " in text) == (doubt is not None)
    assert (doubt or "") in text
    if verified:
        shown = said("audit run", capsys)
        assert "0 of the 12 labels verified at random are wrong (95% interval 0.0% to 26.5% for all labels)" in shown
        assert (doubt or "corrections: none") in shown
        page = (folder / "run/report.html").read_text()
        assert "0 of their 12 labels are wrong (95% interval for all labels: 0.0% to 26.5%)" in page
        assert doubt is None or doubt[1:] in page


def test_rows_that_are_no_random_sample_say_nothing_of_the_others(folder, capsys):
    """Cats alone, of which two corrections are wrong and eight labels look right."""
    rows_and_run(folder, {0, 4, 31}, range(0, 40, 2))
    text, page = said("audit run", capsys), (folder / "run/report.html").read_text()
    copied = said("audit run --export csv --out repaired.csv", capsys)
    assert "expected to be wrong" not in text + page
    warning = "the rows that count as verified at random are not like the others: 100.0% of them have the label 'cat'"
    assert warning in text
    assert "mark such rows as chosen, by 'picked' in the data, in a --verified list or in Python, and verify" in text
    assert warning.replace("'", "&#39;")[1:] in page
    assert f"\nwarning: {warning}" in copied
    assert "; only 0 of 2 corrections of held-back rows" in copied
    assert "0 of the 20 labels counted as verified at random are wrong, which says nothing about the others\n" in text
    assert "corrections: 0 of 2 that would be made in held-back rows are right\n" in text
    assert "0 of their 20 labels are wrong, which says nothing about the others." in page
    assert "0 are right; these rows are not like the others, so this says nothing about other corrections." in page
    assert not re.search("interval [0-9]|% of all labels|% of all[.]|for all (labels|corrections)", text + page)
    assert 'class="verdict warn"' in page
    said("audit run --min-precision 0.9", capsys)
    assert "warning" not in said("audit run --export parquet --out new.parquet", capsys)


@pytest.mark.parametrize("options", ["", "--out review.csv", "--export labelstudio --out tasks.json"])
def test_where_all_rows_are_verified_none_is_to_be(folder, capsys, options):
    rows_and_run(folder, {}, range(40))
    refuse(f"audit run --next 3 {options}", capsys, "all 40 rows of run are verified; none is left to verify")


def test_one_is_not_written_as_several(folder, capsys):
    rows_and_run(folder, {31}, [0])
    text = said("audit run", capsys)
    assert text.startswith("1 of 40 labels counts as wrong, 0 of them by a verdict; about 1 is expected to be wrong\n")
    assert "\n1 row verified at random, 1 of them held back\n" in text
    assert "\n0 of the 1 label verified at random are wrong (" in text
    assert "\nuncalibrated: calibration takes 20 held-back rows, and there is 1\n" in text
    assert "40 rows; 1 label changed" in said("audit run --export csv --out repaired.csv", capsys)
    (folder / "review.csv").write_text("id,verdict,picked\nr5,dog,random\n")
    assert "1 verdict from the review, 2 with those" in said("audit run --import review.csv --out new.csv", capsys)
    assert "1 task; " in said("audit run --export labelstudio --top 1 --out tasks.json", capsys)


def test_labels_that_count_as_wrong_and_are_kept_are_said(folder, capsys):
    """Labels that are mere chance, and a row of which the model says 0.4 for its label and 0.3 for the others."""
    row = np.arange(90)
    probs = np.concatenate([np.eye(3)[row % 3], [[0.4, 0.3, 0.3]]])
    audit_probabilities(probs, np.append(row // 3 % 3, 0), ["a", "b", "c"], out="run")
    lines = said("audit run", capsys).splitlines()
    assert lines[0] == "61 of 91 labels look wrong; no row was verified at random to show how many are"
    assert lines[1] == "left unchanged, since no other label is likelier: 1 of these"


def test_a_doubt_about_corrections_goes_where_a_precision_is_asked_for(folder, capsys):
    rows_and_run(folder, {0, 31}, range(12))
    assert "the only correction" in said("audit run", capsys)
    assert "the only correction" not in said("audit run --min-precision 0.9", capsys)
    assert not any(
        "the only correction" in note for note in json.loads((folder / "run/record.json").read_text())["notes"]
    )
    assert "warning" not in said("audit run --export csv --out repaired.csv", capsys)


def test_top_rows_are_as_many_as_there_are(place, capsys):
    assert len(json.loads(said("audit runs/photos --top 500 --json", capsys))["top"]) == 60


def test_a_known_data_set_can_be_audited_too(folder, capsys):
    assert (
        main(shlex.split("train digits --noise symmetric:0.4 --epochs 1 --device cpu --no-references --out run")) == 0
    )
    assert "uncalibrated: p_wrong and T are a model's estimates" in said("audit run", capsys)
    pictures = json.loads((folder / "run/gallery.json").read_text())["pairs"][0]["items"]
    assert pictures[0]["image"].startswith("data:image/png;base64,")
    refuse("audit run --export csv --out new.csv", capsys, "not trained on data of your own")
    refuse("audit run --min-precision 0.9", capsys, "not trained on data of your own", "no precision can be shown")
    rows = json.loads(said("audit run --next 5 --json", capsys))["rows"]
    assert sorted(row["picked"] for row in rows) == ["chosen"] * 5 + ["random"] * 5


def test_the_report_made_again_is_the_same_and_has_the_gallery(place, capsys):
    before = (place / "runs/photos/report.html").read_bytes()
    said("report runs/photos --out again.html", capsys)
    assert (place / "again.html").read_bytes() == before
    assert before.count(b"<img ") > 1


def test_a_precision_that_rows_cannot_show_corrects_nothing(place, capsys):
    assert "cannot show a precision of 0.99" in said("audit runs/photos --min-precision 0.99 --top 0", capsys)
    with (place / "runs/photos/labels.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["is_issue"] for line in lines if not line["picked"]} == {"false"}
    assert "cannot show a precision of 0.99" in (place / "runs/photos/report.html").read_text()
    assert "cannot show" not in said("audit runs/photos --min-precision 0", capsys)
    assert "cannot show" not in (place / "runs/photos/report.html").read_text()


def images_shown(run: Path) -> list[str | None]:
    gallery = json.loads((run / "gallery.json").read_text())
    return [item["image"] for pair in gallery["pairs"] for item in pair["items"]]


def ask_and_take_back(place: Path, options: str, capsys) -> str:
    """The gallery after a precision was asked for, none of whose thumbnails are left, and taken back."""
    assert images_shown(place / "runs/photos")
    path = place / "runs/photos/gallery.json"
    said("audit runs/photos --min-precision 0.9", capsys)
    path.write_text(re.sub(r'"image": "[^"]*"', '"image": null', path.read_text()))
    said(f"audit runs/photos --min-precision 0 {options}", capsys)
    return path.read_text()


@pytest.mark.parametrize("moved", [False, True])
def test_a_precision_that_is_taken_back_brings_the_thumbnails_back(place, capsys, moved):
    before = (place / "runs/photos/gallery.json").read_text()
    assert None not in images_shown(place / "runs/photos")
    if moved:
        (place / "photos").rename(place / "elsewhere")
    assert ask_and_take_back(place, "--data elsewhere" if moved else "", capsys) == before


def test_thumbnails_of_labels_with_injected_noise_come_back_too(folder, capsys):
    write_digits(folder / "photos", share=0)
    said(f"{TRAIN} --noise symmetric:0.3", capsys)
    before = (folder / "runs/photos/gallery.json").read_text()
    assert None not in images_shown(folder / "runs/photos")
    assert ask_and_take_back(folder, "", capsys) == before


def test_thumbnails_of_arrays_come_back_too(folder, capsys):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8, 3), np.uint8), np.arange(60) % 2
    known = {"labels": y, "verified": np.where(np.arange(60) < 30, 1 - y, -1)}
    np.savez(folder / "photos.npz", x=x, **known)
    np.savez(folder / "features.npz", x=rng.random((60, 8)), **known)
    said(TRAIN.replace("photos --verified verified.txt", "photos.npz").replace("24", "1"), capsys)
    before = (folder / "runs/photos/gallery.json").read_text()
    assert None not in images_shown(folder / "runs/photos")
    assert ask_and_take_back(folder, "", capsys) == before
    refuse("audit runs/photos --min-precision 0 --data features.npz", capsys, "features.npz holds no images", "--data")


def test_thumbnails_are_left_out_where_the_data_are_gone(place, capsys):
    shutil.rmtree(place / "photos")
    ask_and_take_back(place, "", capsys)
    assert set(images_shown(place / "runs/photos")) == {None}


def test_data_that_are_not_the_runs_give_it_no_thumbnails(place, capsys):
    write_digits(place / "others", seed=1)
    (place / "features.csv").write_text("a,label\n1,x\n2,y\n")
    refuse("audit runs/photos --min-precision 0 --data others", capsys, "others has no row", "--data")
    refuse("audit runs/photos --min-precision 0 --data features.csv", capsys, "features.csv has no row", "--data")


def test_label_studio_gets_tasks_with_addresses_of_the_images(place, capsys):
    said("audit runs/photos --export labelstudio --top 4 --out tasks.json", capsys)
    tasks = json.loads((place / "tasks.json").read_text())
    assert len(tasks) == 4
    for task in tasks:
        path = task["data"]["image"].removeprefix("/data/local-files/?d=")
        assert (place / path).is_file()
    said("audit runs/photos --next 3 --export labelstudio --url https://x.org/p/ --out next.json", capsys)
    tasks = json.loads((place / "next.json").read_text())
    assert {task["data"]["image"] for task in tasks} == {f"https://x.org/p/{t['data']['row_id']}" for t in tasks}
    assert sorted(task["data"]["picked"] for task in tasks) == ["chosen"] * 3 + ["random"] * 3


def test_features_are_shown_to_label_studio_as_text(folder, capsys):
    from own_data import write_table

    write_table(folder / "items.csv")
    assert main(shlex.split("train items.csv --device cpu --epochs 2 --no-references --out run")) == 0
    said("audit run --next 2 --export labelstudio --out next.json", capsys)
    task = json.loads((folder / "next.json").read_text())[0]
    line = next(
        line for line in (folder / "items.csv").read_text().splitlines() if line.startswith(task["data"]["row_id"])
    )
    assert f"f0 = {line.split(',')[1]}" in task["data"]["text"]
    said("audit run --export csv --out new.csv", capsys)
    rows = read_rows("new.csv", Own())
    assert (rows.split.count("test"), len(rows)) == (60, 400)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--export folders --out x", ["unknown --export 'folders'", "'folder'"]),
        ("--export csv", ["--out is missing"]),
        ("--import verified.txt", ["--out is missing"]),
        ("--out x.csv", ["nothing is written to --out x.csv"]),
        ("--next 3 --export folder --out x", ["--next goes with --export csv or labelstudio"]),
        ("--data elsewhere", ["--data is for copies, tasks and --min-precision"]),
        ("--data elsewhere --next 3", ["--data is for copies"]),
        ("--data elsewhere --import verified.txt --out x", ["--data is for copies"]),
        ("--import verified.txt --next 3 --out x", ["--import goes with --out alone"]),
        ("--url http://x --export csv --out x.csv", ["--url is for --export labelstudio"]),
        ("--top 5 --export csv --out x.csv", ["--top is for the list"]),
        ("--min-precision 0.9 --export csv --out x.csv", ["--min-precision", "of its own", "leave out --export"]),
        ("--min-precision 0.9 --import verified.txt --out x.csv", ["--min-precision", "a second command"]),
        ("--min-precision 0 --next 3", ["--min-precision", "a second command"]),
        ("--top 5 --next 3", ["--top is for the list", "see --next"]),
        ("--export csv --out photos.txt", ["must end in .csv"]),
        ("--export csv --out truth.json", ["must end in .csv"]),
        ("--export labelstudio --out tasks.csv", ["must end in .json"]),
        ("--export labelstudio --out truth.json", ["already exists"]),
        ("--export folder --out photos/new", ["photos/new is inside the data photos", "outside it"]),
        ("--export folder --out runs", ["already exists"]),
        ("--import verified.txt --out new.csv", ["is not a review"]),
        ("--import missing.json --out new.csv", ["there is no file missing.json"]),
        ("--next 3 --out verified.txt", ["already exists"]),
        ("--next 3 --out tasks.json", ["--next writes CSV", "--export labelstudio", "tasks.json"]),
        ("--min-precision 95", ["between 0 and 1", "0.95"]),
        ("--export folder --data elsewhere --out new", ["elsewhere", "are not there"]),
    ],
)
def test_what_cannot_be_is_one_sentence_and_writes_nothing(place, capsys, options, words):
    refuse(f"audit runs/photos {options}", capsys, *words)


def test_an_unfinished_run_and_no_run_at_all_are_refused(place, capsys):
    refuse("audit photos", capsys, "holds no run")
    record = json.loads((place / "runs/photos/record.json").read_text())
    (place / "runs/photos/record.json").write_text(json.dumps({**record, "result": None}))
    refuse("audit runs/photos", capsys, "is not finished; `fasten resume")


def test_a_review_is_merged_over_several_files(place, capsys):
    truth = json.loads((place / "truth.json").read_text())
    said("audit runs/photos --next 4 --out a.csv", capsys)
    fill_in(place / "a.csv", truth)
    unseen = next(row["id"] for row in json.loads(said("audit runs/photos --top 500 --json", capsys))["top"][::-1])
    (place / "b.csv").write_text(f"path;verdict\n{unseen};{truth[unseen]}\n")
    done = json.loads(
        said("audit runs/photos --import a.csv --import b.csv --import a.csv --out new.csv --json", capsys)
    )
    assert (done["written"], done["new"]) == ("new.csv", 9)
    rows = read_rows("photos", Own(verified="new.csv"))
    assert sum(label is not None for label in rows.verified) == done["verified"]
    assert rows.picked.count("random") == done["random"] == 64


def test_verdicts_on_test_images_stay_in_the_next_list_and_in_a_repaired_copy(folder, capsys):
    _, truth = write_digits(folder / "photos/train", per_class=20)
    names = sorted(truth)
    apart = names[::5]
    for name in apart:
        (folder / "photos/test" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "photos/train" / name).rename(folder / "photos/test" / name)
    lines = [f"{'test' if name in apart else 'train'}/{name},{truth[name]}" for name in names]
    Path("verified.txt").write_text("\n".join(lines[:30]))
    checked = [name for name in apart if name in names[:30]]
    assert any(name.split("/")[0] != truth[name] for name in checked)
    said("train photos --verified verified.txt --device cpu --epochs 1 --no-references --out run", capsys)
    Path("review.csv").write_text("id,verdict\n" + lines[31])
    done = json.loads(said("audit run --import review.csv --out next.csv --json", capsys))
    assert (done["verified"], done["random"], done["chosen"]) == (31, 30, 1)
    before, after = (read_rows("photos", Own(verified=name)) for name in ("verified.txt", "next.csv"))
    test = before.rows_of("test")
    assert after.columns.take(test).verified == before.columns.take(test).verified
    said("audit run --export folder --out repaired", capsys)
    copies = {path.read_bytes(): path.parent.name for path in (folder / "repaired/test").rglob("*.png")}
    wanted = {name: truth[name] if name in checked else name.split("/")[0] for name in apart}
    assert copies == {(folder / "photos/test" / name).read_bytes(): label for name, label in wanted.items()}


def test_a_name_in_a_table_cannot_command_the_terminal(capsys):
    show_table(["id"], [["cat/\x1b[31mRöhre\x9b猫.png"]])
    assert "cat/�[31mRöhre�猫.png" in capsys.readouterr().out


def test_a_label_of_many_letters_is_cut_in_tables(capsys):
    show_table(["given", "rows"], [["x" * 5000, 3], ["y" * 300, 4]])
    said = capsys.readouterr().out
    assert (said.count("x"), said.count("y"), said.count("…")) == (299, 300, 1)
