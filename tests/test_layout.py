"""The layout holds: data flow one way, files stay short, and steps stay on the device."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import fasten

ROOT = Path(fasten.__file__).parent

# In the direction of the data; a file imports only from those above it. `x.*` are the other files of a package: they
# stand before the package itself, and may import each other where that makes no circle.
ORDER = [
    *("constants", "files", "npy", "cells", "suggest", "sentences", "signals", "seeds", "torchrun", "ranks", "kernels"),
    "statistics",
    *("data", "data.images", "data.moments", "data.splits", "data.source", "data.pickles", "data.download"),
    *("data.decoding", "data.decoders", "data.labels", "data.numbers", "data.encoding", "data.rows"),
    *("data.texts", "data.verdicts", "data.table", "data.folder", "data.arrays", "data.hub"),
    *("data.digits", "data.cifar", "data.cifarn", "data.clothing1m", "data.noise", "data.synthetic", "data.task"),
    "data.targets",
    *("ranges", "contract", "augment", "strong_augment", "fused_augment", "loader", "stream"),
    *("nets.*", "nets", "ops", "ops.*", "methods.*", "methods"),
    *("metrics", "audit", "audit.calibration", "audit.corrections", "audit.dependence", "audit.evidence"),
    "audit.findings",
    *("machine", "capture", "averaging", "opinions", "optimizers", "update", "engine", "evaluate"),
    *("own", "datasets", "options", "records", "runs", "runs.folders"),
    "experiments.spec",  # the report shows what these values say
    *("report.*", "report", "audit.gallery", "runs.*"),
    *(
        "audit.stored",
        "runs.testing",
        "audit.repair",
        "audit.pictures",
        "audit.reviews",
        "estimator",
        "observing",
        "bench",
        "theory",
    ),
    *("grid", "grid.workers", "grid.cluster", "grid.standings", "grid.compare", "grid.speed"),
    *("experiments.*", "experiments", "grid.wanted", "grid.reproduce"),
    *("", "commands.*", "commands", "cli", "__main__"),  # "" is the package's own face
]

# Help, and an answer to a mistyped command, do not wait for torch: what these need is imported in each command.
COMMANDS = {"commands", "cli"}

# Imported where they are used, because they cost a second or are of use to few.
LATE = {
    "data.digits": {"sklearn.datasets"},
    "data.download": {"rich.console", "rich.progress"},
    "records": {""},  # torch, in both of these
    "seeds": {""},
    "report.paper_figures": {"", "matplotlib.figure", "matplotlib.lines"},  # "" is matplotlib itself
}

# All that reads pickles, with its own check of what is in them.
PICKLES = "data.pickles"
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

PRINTING = {"commands", "cli"}
IN_STEPS = {"item", "cpu", "numpy", "tolist", "print"}  # what makes the host wait for the device


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
METHODS = [name for name in FILES if name.startswith("methods.")]


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def imported(node: ast.AST) -> set[str]:
    """The modules that a part of a file imports, `from a import b` as a.b where b may be a module."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            found |= {alias.name for alias in part.names}
        elif isinstance(part, ast.ImportFrom):
            assert part.level == 0, "imports are absolute"
            found |= {f"{part.module}.{alias.name}" for alias in part.names}
    return found


def ours(name: str) -> set[str]:
    """The files of ours that a file imports, at its top or anywhere else."""
    found = set()
    for full in imported(tree(name)):
        if full.split(".")[0] == "fasten":
            inside = full.partition(".")[2]
            found.add(inside if inside in FILES else inside.rpartition(".")[0])
    return found


def place(name: str) -> int:
    package = f"{name.rpartition('.')[0]}.*"
    return ORDER.index(name) if name in ORDER else ORDER.index(package)


def calls(node: ast.AST) -> set[str]:
    """The names of functions and methods that are called."""
    functions = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_its_place(name):
    assert name in ORDER or f"{name.rpartition('.')[0]}.*" in ORDER, f"give {name} its place in ORDER"


def test_every_place_is_taken():
    assert [name for name in ORDER if not name.endswith("*") and name not in FILES] == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_imports_only_from_those_above_it(name):
    below = {other for other in ours(name) if place(other) > place(name)}
    assert below == set()
    assert name not in ours(name)


def test_no_imports_go_round_in_a_circle():
    left = {name: ours(name) for name in FILES}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert left == {}


@pytest.mark.parametrize("name", [name for name in FILES if name.split(".")[0] not in COMMANDS])
def test_imports_stand_at_the_top(name):
    functions = [part for part in ast.walk(tree(name)) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {full.rpartition(".")[0] for function in functions for full in imported(function)}
    assert late == LATE.get(name, set())


def test_the_report_reads_records_and_nothing_else():
    """It is written from a record alone, so that anyone's record gives the same page."""
    parts = {f"report.{part}" for part in ("charts", "gallery", "names", "trust", "values", "verdict")}
    assert set().union(*(ours(name) for name in ("report", *parts))) <= {"files", "records", *parts}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_short_enough_to_read(name):
    lines = len(FILES[name].read_text(encoding="utf-8").splitlines())
    assert lines < 150 if name in METHODS else lines <= 400


@pytest.mark.parametrize("name", FILES)
def test_public_names_say_what_they_are(name):
    parts = [p for p in tree(name).body if isinstance(p, ast.FunctionDef | ast.ClassDef) and p.name[0] != "_"]
    assert [part.name for part in parts if ast.get_docstring(part) is None] == []
    assert ast.get_docstring(tree(name)) is not None


@pytest.mark.parametrize("name", METHODS)
def test_no_method_imports_another(name):
    assert {other for other in ours(name) if other.startswith("methods")} == set()


@pytest.mark.parametrize("name", METHODS)
def test_no_method_makes_the_host_wait(name):
    assert calls(tree(name)) & IN_STEPS == set()


@pytest.mark.parametrize("name", [name for name in FILES if name != PICKLES])
def test_nothing_is_unpickled(name):
    assert {full.split(".")[0] for full in imported(tree(name))} & FORBIDDEN_MODULES == set()
    text = FILES[name].read_text(encoding="utf-8")
    assert "torch.load(" not in text.replace("safetensors.torch.load(", "")
    assert "torch.save(" not in text.replace("safetensors.torch.save(", "")
    assert text.count("np.load(") + text.count("np.save(") == text.count("allow_pickle=False")


@pytest.mark.parametrize("name", [name for name in FILES if name.partition(".")[0] not in PRINTING])
def test_only_the_command_line_prints(name):
    assert "print" not in calls(tree(name))


@pytest.mark.parametrize("name", FILES)
def test_randomness_is_passed_and_never_global(name):
    text = FILES[name].read_text(encoding="utf-8")
    assert "np.random.seed" not in text
    seeds = text.count("torch.manual_seed")
    assert seeds == text.count("fork_rng"), "weights are initialised from torch's own generator: inside fork_rng"


@pytest.mark.parametrize("name", FILES)
def test_doubles_are_made_on_the_host(name):
    """Apple's GPUs have none."""
    made = [p for p in ast.walk(tree(name)) if isinstance(p, ast.Attribute) and p.attr == "double"]
    assert [calls(part.value) & {"cpu"} for part in made] == [{"cpu"}] * len(made)
