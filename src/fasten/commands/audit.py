"""The command audit: it shows a run's labels, exports them to reviewers, and writes repaired copies."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fasten.commands.arguments import Folder, Json, MinPrecision, number, place, text
from fasten.sentences import some
from fasten.suggest import nearest

if TYPE_CHECKING:
    import pandas as pd

    from fasten.audit.repair import Copied
    from fasten.audit.stored import Audit

EXPORTS = ("labelstudio", "csv", "parquet", "folder")
SHOWN = 10  # rows, unless --top says otherwise
UNKNOWN = "no row was verified at random, so nothing shows how many corrections are right; look at some of them first"
COLUMNS = ("id", "given", "suggested", "p_wrong", "p_suggested", "is_issue")


def audit(
    dir: Folder,
    top: Annotated[
        int | None,
        number("--top", 0, "How many rows to show: the most suspect ones that nobody verified; by default 10."),
    ] = None,
    min_precision: MinPrecision = None,
    verify: Annotated[
        int | None, number("--next", 1, "Choose N rows to verify next, those that would help most, and N random ones.")
    ] = None,
    export: Annotated[str | None, text("--export", "KIND", "labelstudio, csv, parquet or folder; needs --out.")] = None,
    reviews: Annotated[
        list[Path] | None, place("--import", "A finished review, from Label Studio or as CSV; may be repeated.")
    ] = None,
    out: Annotated[Path | None, place("--out", "The file or folder to write; it must be new.")] = None,
    data: Annotated[str | None, text("--data", "PATH", "The run's data, if they have moved since.")] = None,
    url: Annotated[
        str | None,
        text(
            "--url",
            "PREFIX",
            "Prefix of the image addresses in Label Studio tasks; by default Label Studio's local files.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which labels of a run look wrong; export and import.

    Without options it prints the most suspect rows. --next chooses rows for a
    reviewer; --import merges the finished review with the verdicts that the run
    had, into a list for `train --verified`. --export csv, parquet and folder
    write a repaired copy of the data; images in a folder are hard links where
    possible, so do not edit them in place. --export labelstudio writes a task
    for each row that looks wrong, or that --next chooses, and the labelling
    interface beside them. --min-precision corrects anew: it replaces labels.csv,
    gallery.json, record.json and report.html in DIR, and an export is the next
    command. Nothing else changes DIR, and nothing ever changes the data.

    \b
    Examples:
      fasten audit runs/photos --top 500
      fasten audit runs/photos --export folder --out photos-repaired
      fasten audit runs/photos --next 100 --out review.csv
      fasten audit runs/photos --import review.csv --out verified.csv
      fasten train photos --verified verified.csv --out runs/photos-2
    """
    from fasten.audit.pictures import stored_pictures
    from fasten.audit.stored import choose_threshold, read_audit

    _check(top, verify, export, reviews, out, data, url, min_precision)
    found = read_audit(dir, made_anew=min_precision is not None)
    if min_precision is not None:
        found = choose_threshold(found, min_precision or None, stored_pictures(found, data))
    if reviews:
        _say(_import(found, reviews, _needed(out)), as_json)
    elif export is not None or verify is not None:
        _say(_export(found, verify, export, top, out, data, url), as_json)
    else:
        _show(found, SHOWN if top is None else top, as_json)


def _check(
    top: int | None,
    verify: int | None,
    export: str | None,
    reviews: Any,
    out: Path | None,
    data: str | None,
    url: str | None,
    min_precision: float | None,
) -> None:
    """Refuse options that do not go together, before anything is read."""
    if export is not None and export not in EXPORTS:
        raise ValueError(f"unknown --export {export!r}; {nearest(export, EXPORTS)}")
    if min_precision is not None and (reviews or verify is not None or export is not None):
        raise ValueError(
            "--min-precision recomputes the corrections, in a command of its own; leave out --export, --import and "
            "--next, and give them in a second command"
        )
    if reviews and (verify is not None or export is not None):
        raise ValueError("--import goes with --out alone; use --export or --next in a second command")
    if verify is not None and export not in (None, "csv", "labelstudio"):
        raise ValueError(f"--next goes with --export csv or labelstudio, got {export!r}")
    if top is not None and (reviews or verify is not None or export not in (None, "labelstudio")):
        raise ValueError("--top is for the list and for --export labelstudio; leave it out, or see --next")
    if url is not None and export != "labelstudio":
        raise ValueError("--url is for --export labelstudio; leave it out")
    reads_data = min_precision is not None or (export is not None and (verify is None or export == "labelstudio"))
    if data is not None and not reads_data:
        raise ValueError("--data is for copies, tasks and --min-precision, which read the data; leave it out")
    if out is None and (reviews or export is not None):
        raise ValueError("--out is missing; say what file or folder to write")
    if out is not None and not reviews and export is None and verify is None:
        raise ValueError(f"nothing is written to --out {out}; add --export, --import or --next")


def _import(found: Audit, reviews: list[Path], out: Path) -> dict[str, Any]:
    from fasten.audit.reviews import merge_verdicts, read_review, write_verified

    verdicts = [verdict for path in reviews for verdict in read_review(path, found)]
    merged = merge_verdicts(found, verdicts)
    _refuse_existing(out)
    write_verified(merged, out)
    ways = {way: sum(verdict.picked == way for verdict in merged) for way in ("random", "chosen")}
    picked = f"{ways['random']} random, {ways['chosen']} chosen"
    new = len({verdict.id for verdict in verdicts})  # reviews may have rows in common
    said = f"{some(new, 'verdict')} from the review, {len(merged)} with those that the run had: {picked}"
    return {"written": os.fspath(out), "new": new, "verified": len(merged), **ways, "said": said}


def _export(
    found: Audit,
    verify: int | None,
    export: str | None,
    top: int | None,
    out: Path | None,
    data: str | None,
    url: str | None,
) -> dict[str, Any]:
    from fasten.audit.repair import find_originals, write_folder, write_table
    from fasten.audit.reviews import issue_rows

    if export == "labelstudio":
        rows = issue_rows(found, top) if verify is None else _rows_to_verify(found, verify)
        if rows.empty:
            raise ValueError(f"no unverified label of {found.folder} counts as wrong; --next N chooses rows to verify")
        return _label_studio(found, rows, _needed(out), data, url)
    if verify is not None:
        return _review(_rows_to_verify(found, verify), out)
    target = _needed(out)
    if export == "folder":
        return _copied(write_folder(found, find_originals(found, data), target), target, found)
    kind: Any = export
    copied = write_table(found, find_originals(found, data, as_text=export == "csv"), kind, target)
    return _copied(copied, target, found)


def _rows_to_verify(found: Audit, n: int) -> pd.DataFrame:
    from fasten.audit.reviews import next_rows

    rows = next_rows(found, n)
    if rows.empty:
        raise ValueError(f"all {some(len(found.table), 'row')} of {found.folder} are verified; none is left to verify")
    return rows


def _review(rows: pd.DataFrame, out: Path | None) -> dict[str, Any]:
    from fasten.audit.reviews import REVIEWED, write_review

    said = f"{some(len(rows), 'row')} to verify; write the right label of each into the column verdict"
    if out is None:
        return {"rows": rows[REVIEWED].to_dict("records"), "said": ""}
    if out.suffix.lower() == ".json":
        raise ValueError(f"--next writes CSV; add --export labelstudio, or choose another name than {out}")
    _refuse_existing(out)
    write_review(rows, out)
    return {"written": os.fspath(out), "num_rows": len(rows), "said": said}


def _label_studio(found: Audit, rows: pd.DataFrame, out: Path, data: str | None, url: str | None) -> dict[str, Any]:
    from fasten.audit.repair import find_originals
    from fasten.audit.reviews import feature_texts, image_addresses, tasks, write_tasks

    if out.suffix.lower() != ".json":
        raise ValueError(f"--out {out} must end in .json for --export labelstudio")
    _refuse_existing(out)
    _refuse_existing(out.with_suffix(".xml"))
    kind, shown = "text", {}
    if found.record["run"].get("own") is not None:
        originals = find_originals(found, data)
        kind = "text" if originals.files is None else "image"
        wanted = [str(name) for name in rows["id"]]
        shown = image_addresses(originals, url) if originals.files is not None else feature_texts(originals, wanted)
    interface = write_tasks(tasks(rows, kind, shown), kind, found.class_names, out)
    said = f"{some(len(rows), 'task')}; the labelling interface is {interface}"
    return {"written": os.fspath(out), "interface": os.fspath(interface), "num_rows": len(rows), "said": said}


def _copied(copied: Copied, out: Path, found: Audit) -> dict[str, Any]:
    evidence = (found.record["evaluation"] or {}).get("evidence") or {}
    doubt = _doubt(evidence) if evidence.get("num_random") else UNKNOWN if copied.changed else None
    lost, why = copied.left_out, "whose images are elsewhere, or missing, are"
    why = "whose image is elsewhere, or missing, is" if lost == 1 else why
    left = f"; {some(lost, 'row')} {why} left out" if lost else ""
    links = f", {copied.linked:,} of them hard links" if copied.linked else ""
    said = f"{some(copied.rows, 'row')}{links}; {some(copied.changed, 'label')} changed{left}"
    said += f"\nwarning: {doubt}" if doubt else ""
    return {"written": os.fspath(out), **vars(copied), "doubt": doubt, "said": said}


def _doubt(evidence: Mapping[str, Any]) -> str | None:
    """What speaks against a copy, if anything; nothing does if labels were only changed by verdicts."""
    odd = (evidence.get("sample") or {}).get("warning") if evidence.get("num_changed") else None
    return "; ".join(sentence for sentence in (odd, evidence.get("doubt")) if sentence) or None


def _needed(out: Path | None) -> Path:
    assert out is not None  # _check refuses a command without it
    return out


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out} already exists; choose another --out")


def _say(done: dict[str, Any], as_json: bool) -> None:
    from fasten.commands import console

    said = done.pop("said")
    if as_json:
        print(json.dumps(done))
    elif "written" in done:
        print(f"{done['written']}: {said}")
    else:
        console.show_table(list(done["rows"][0]) if done["rows"] else [], [list(row.values()) for row in done["rows"]])


def _show(found: Audit, top: int, as_json: bool) -> None:
    from fasten.audit.gallery import is_verified
    from fasten.audit.stored import summarise
    from fasten.commands import console

    summary, rows = summarise(found), found.table[~is_verified(found.table)].head(top)
    shown = [{key: _plain(row[key]) for key in COLUMNS} for row in rows.to_dict("records")]
    if as_json:
        print(json.dumps({**summary, "top": shown}))
    else:
        console.show_audit(summary, found.folder)
        if shown:
            print()
            console.show_table(COLUMNS, [list(row.values()) for row in shown])


def _plain(value: Any) -> Any:
    return round(float(value), 6) if isinstance(value, float) else bool(value) if value in (True, False) else value
