"""Add the compact form of a run's record to this folder: `python results/add.py RECORD ... [--shared] [--commit SHA]`.

RECORD is a run's folder or its record.json. README.md in this folder says what is left out.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from fasten.datasets import Place, find_dataset
from fasten.experiments.spec import key
from fasten.files import write_text
from fasten.options import apply_settings, find_method, option_defaults
from fasten.records import Record, Run, read_record, taken_back

HERE = Path(__file__).parent
DIGITS = 7  # more than any measurement is accurate to
COMMIT = re.compile(r"[0-9a-f]{40}")
MACHINE_PATH = re.compile(r"""(?:^|[\s"'=:(])(?:~?/|[A-Za-z]:\\)\w""")


def slim(record: Record, commit: str | None = None, shared: bool = False) -> Record:
    """The part of a record that is kept: numbers to seven significant digits, without paths of the machine."""
    if record["result"] is None:
        raise ValueError("the run has not finished; finish it with `fasten resume` first")
    if went := taken_back(record):
        raise ValueError(f"the run {went}, so it is another than its settings say; train it anew with a lower rate")
    environment = {name: value for name, value in record["environment"].items() if name != "how"}
    if find_dataset(record["run"]["dataset"]).given:
        _check_labels(record["environment"].get("how", {}).get("label_set"))
    if commit is not None and commit != environment["commit"]:
        said = f", in place of {environment['commit']}" if environment["commit"] else ""
        environment["commit_note"] = f"entered afterwards{said}: the nearest commit, not the exact tree"
        environment["commit"] = commit
    if not COMMIT.fullmatch(str(environment["commit"])):
        raise ValueError(f"a commit has 40 hexadecimal digits, got {environment['commit']}; give it with --commit")
    environment["shared_gpu"] = shared or bool(environment.get("shared_gpu"))
    kept: Record = _rounded({**record, "environment": environment, "run": _plain(record["run"])})
    if found := [text for text in _texts(kept) if MACHINE_PATH.search(text)]:
        raise ValueError(f"the record contains a path of the machine it ran on, {found[0]!r}; others cannot use it")
    return kept


def _plain(run: dict[str, Any]) -> dict[str, Any]:
    """The run with weights named by file name only, and without options that are the method's defaults."""
    usual = option_defaults(find_method(run["method"]))
    options = {name: value for name, value in run["options"].items() if value != usual[name]}
    weights = run["recipe"].get("weights")
    recipe = run["recipe"] if weights is None else {**run["recipe"], "weights": Path(weights).name}
    return {**run, "options": options, "recipe": recipe}


def file_name(run: Run) -> str:
    """`METHOD-NOISE-seedN.json` for a run with the defaults of its data set and method; any other gets a digest.

    >>> file_name(Run("cifar10", "symmetric:0.8", seed=1))
    'fasten-symmetric-0.8-seed1.json'
    """
    plain = f"{run.method}-{re.sub(r'[:/]', '-', run.noise)}-seed{run.seed}"
    usual = apply_settings(run.method, find_dataset(run.dataset).recipe, ())[1]
    same = not run.options and run.clean is None and run.recipe == usual
    return f"{plain}.json" if same else f"{plain}-{key(run).rpartition('-')[2]}.json"


def add(source: Path, folder: Path, commit: str | None = None, shared: bool = False) -> Path:
    """Write the compact record; never replace an existing one by a different one."""
    try:
        record = slim(read_record(source), commit, shared)
        run = Run.from_json(record["run"])
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    path = folder / run.dataset / file_name(run)
    text = json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ValueError(f"{path} holds another record of this run; to keep the new one, remove that file first")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def _check_labels(found: str | None) -> None:
    if found != Place.label_set:
        raise ValueError(f"the tables use the {Place.label_set} labels, but this run used {found}")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def main(arguments: list[str] | None = None) -> None:
    """Add the records named on the command line."""
    parser = argparse.ArgumentParser(description="Add the records of finished runs to results/, in compact form.")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="a run's folder, or its record.json")
    parser.add_argument("--shared", action="store_true", help="other runs used the same GPU, so the times mean nothing")
    parser.add_argument("--commit", help="the commit of the code that ran, if the record does not have it")
    parser.add_argument("--to", type=Path, default=HERE, help="the folder of records (default: this script's folder)")
    given = parser.parse_args(arguments)
    for source in given.records:
        try:
            print(add(source, given.to, given.commit, given.shared))
        except ValueError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
