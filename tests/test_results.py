"""The page of results says what the records say, and records come into their folder small and whole."""

import importlib.util
import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest

from fasten.contract import Recipe
from fasten.records import Run
from fasten.report.paper import digest

ROOT = Path(__file__).parent.parent
RECORDS = sorted((ROOT / "results").glob("*/*.json"))
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
T_DIAGONALS = ("t_diagonal", "t_diagonal_true")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "results" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_page, adding = script("make_page"), script("add")


def test_the_page_is_what_the_records_make():
    assert make_page.page() == PAGE, "make it anew: python results/make_page.py"


def test_the_tables_of_the_readme_are_what_the_records_make():
    assert make_page.readme() == (ROOT / "README.md").read_text(encoding="utf-8"), "python results/make_page.py"


def test_its_drawings_are_of_these_records():
    shown = {outcome.experiment.name: outcome for outcome in make_page.outcomes() if make_page.shows_drawing(outcome)}
    assert set(re.findall(r"\]\(([\w-]+)\.svg\)", PAGE)) == set(shown)
    for name, outcome in shown.items():
        drawn = (ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8")
        assert digest(outcome) in drawn, "make it anew: python results/make_page.py"


def section(name):
    return PAGE.partition(f'<a id="{name}"></a>')[2].partition("<a id=")[0]


@pytest.mark.parametrize(
    ("method", "row", "paper", "word"),
    [
        ("mw-net", "MW-Net", "56.56 ± 3.07", "better"),
        ("glc", "GLC", "67.44 ± 1.50", "better"),
        ("mlac", "MLaC", "71.94 ± 2.22", "reproduced"),
    ],
)
def test_a_cell_of_the_main_table_is_that_of_its_record(method, row, paper, word):
    record = json.loads((ROOT / "results" / "cifar10" / f"{method}-symmetric-0.8-seed1.json").read_text())
    ours = 100 * record["result"]["test_accuracy"]
    head, line = (
        next(line for line in section("table1").splitlines() if line.startswith(start))
        for start in ("|  | symmetric", f"| {row} |")
    )
    column = [name.strip() for name in head.split("|")].index("symmetric 80%")
    assert line.split("|")[column].strip() == f"{ours:.2f} (1)<br>{paper}<br>{word}"


def test_every_table_and_figure_is_on_the_page_or_said_to_be_missing():
    missing = re.findall(r"`([\w-]+)`", PAGE.partition("Without any record so far:")[2].partition(". ")[0])
    for outcome in make_page.outcomes():
        name = outcome.experiment.name
        assert (f"## {outcome.experiment.title}" in section(name)) is outcome.known
        assert (name in missing) is not outcome.known


def test_every_record_counts_somewhere():
    listed = {make_page.base(run) for o in make_page.outcomes() for run in o.experiment.runs()}
    apart = make_page.others()
    for record in make_page.records():
        run = Run.from_json(record["run"])
        ends = f"| {run.seed} | {record['result']['test_accuracy']:.2%} |"
        shown = any(f"| {run.noise} |" in line and line.endswith(ends) for line in apart.splitlines())
        assert run.dataset == "digits" or shown is not (make_page.base(run) in listed)


def test_a_record_beside_the_tables_tells_what_it_sets():
    (line,) = [line for line in make_page.others().splitlines() if "L2RW" in line]
    record = json.loads((ROOT / "results/cifar10/l2rw-symmetric-0.8-seed1-9bf9b565.json").read_text())
    assert f"| momentum={record['run']['recipe']['momentum']} |" in line


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_committed_record_is_finished_and_names_no_machine_path(path):
    text = path.read_text(encoding="utf-8")
    record = json.loads(text)
    run = Run.from_json(record["run"])
    assert record["schema"] == 1
    assert record["result"]["test_accuracy"] > 0
    assert "how" not in record["environment"]
    assert not re.search(r'"(/|~|[A-Z]:\\)', text)
    assert path.name in (adding.file_name(run), f"{run.method}-{run.noise.replace(':', '-')}-seed{run.seed}.json")
    assert path.parent.name == run.dataset
    assert {"torch", "device", "commit", "shared_gpu"} <= record["environment"].keys()
    assert max(len(number) for number in re.findall(r"\d\.(\d+)", json.dumps(record["result"]))) <= 10


def long_record(**more):
    """As a run writes it: all digits, and how it was called."""
    record = json.loads((ROOT / "results" / "cifar10" / "glc-symmetric-0.8-seed1.json").read_text())
    record["environment"] |= {"how": {"root": "/home/me/data", "label_set": "worst"}, "commit": COMMIT}
    for name in ("commit_note", "shared_gpu"):
        del record["environment"][name]
    record["result"]["train_seconds"] = 859.588479699
    return record | more


def put(folder, record):
    path = folder / "record.json"
    path.write_text(json.dumps(record, indent=1))
    return path


def test_a_record_is_added_small(tmp_path):
    path = adding.add(put(tmp_path, long_record()), tmp_path / "results", shared=True)
    text = path.read_text()
    found = json.loads(text)
    assert path == tmp_path / "results" / "cifar10" / "glc-symmetric-0.8-seed1.json"
    assert found["result"]["train_seconds"] == 859.5885
    assert "how" not in found["environment"]
    assert (found["environment"]["commit"], found["environment"]["shared_gpu"]) == (COMMIT, True)
    assert "commit_note" not in found["environment"]
    assert text == json.dumps(found, separators=(",", ":")) + "\n"
    assert adding.add(put(tmp_path, long_record()), tmp_path / "results", shared=True) == path  # the same again
    with pytest.raises(ValueError, match="holds another record of this run"):
        adding.add(put(tmp_path, long_record()), tmp_path / "results")


def test_weights_are_kept_by_the_name_of_their_file():
    record = long_record()
    record["run"]["recipe"]["weights"] = "/home/me/data/start.safetensors"
    assert adding.slim(record)["run"]["recipe"]["weights"] == "start.safetensors"


def test_options_that_are_the_methods_own_anyway_are_left_out():
    record = long_record()
    record["run"] |= {"method": "mw-net", "options": {"meta_optim": "sgd", "normalise": False}}
    assert adding.slim(record)["run"]["options"] == {"normalise": False}


def test_a_commit_that_is_entered_afterwards_is_told():
    other = COMMIT[::-1]
    found = adding.slim(long_record(), other)["environment"]
    assert found["commit"] == other
    assert f"in place of {COMMIT}" in found["commit_note"]
    assert found["shared_gpu"] is False


def test_runs_with_other_options_have_other_names():
    runs = [
        Run("cifar10", "symmetric:0.8", seed=1),
        Run("cifar10", "symmetric:0.8", seed=1, options={"noisy_weight": 0.1}),
        Run("cifar10", "symmetric:0.8", seed=1, options={"noisy_weight": 1.0}),
        Run("cifar10", "symmetric:0.8", seed=1, recipe=Recipe(epochs=7)),
        Run("cifar10", "symmetric:0.8", seed=1, clean=100),
    ]
    names = [adding.file_name(run) for run in runs]
    assert names[0] == "fasten-symmetric-0.8-seed1.json"
    assert all(re.fullmatch(r"fasten-symmetric-0\.8-seed1-[0-9a-f]{8}\.json", name) for name in names[1:])
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"result": None}, "has not finished"),
        ({"environment": {"commit": None}}, "40 hexadecimal digits"),
        ({"rewinds": [{"rate_factor": 0.1}]}, "diverged and continued with 0.1 of its learning rate"),
        ({"notes": ["weights from /home/me/resnet.safetensors"]}, "a path of the machine"),
        (
            {"run": {"dataset": "cifar10n", "method": "fasten"}, "environment": {"how": {"label_set": "aggregate"}}},
            "worst",
        ),
        ({"schema": 2}, "schema"),
    ],
)
def test_what_others_cannot_use_is_refused_in_one_sentence(tmp_path, capsys, change, message):
    with pytest.raises(SystemExit) as stopped:
        adding.main([str(put(tmp_path, long_record(**change))), "--to", str(tmp_path)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_the_readme_quotes_the_records():
    readme = (ROOT / "README.md").read_text()
    for dataset, noise, label in (
        ("digits", "symmetric:0.4", "| digits | symmetric 40% |"),
        ("digits", "symmetric:0.8", "| digits | symmetric 80% |"),
        ("cifar10", "symmetric:0.8", "| CIFAR-10 | symmetric 80% |"),
        ("cifar10", "asymmetric:0.4", "| CIFAR-10 | asymmetric 40% |"),
    ):
        found = [r for r in make_page.records(dataset) if (r["run"]["method"], r["run"]["noise"]) == ("fasten", noise)]
        found = [r for r in found if make_page.usual(r["run"])]
        ours = sum(r["result"]["test_accuracy"] for r in found) / len(found)
        long = [json.loads(p.read_text())["result"] for p in (ROOT / "results" / dataset).glob("clean-only-*.json")]
        alone = [r["test_accuracy"] for r in long or (r["references"]["clean_only"] for r in found)]
        (line,) = [line for line in readme.splitlines() if line.startswith(label)]
        cells = [cell.replace("*", "").strip() for cell in line.split("|")]
        assert len({r["run"]["seed"] for r in found}) == len(found)  # no seed counts twice
        assert cells[3] == f"{ours:.1%} ({len(found)})"
        runs = [r for r in make_page.records(dataset) if make_page.noisy_t(r["run"]) and r["run"]["noise"] == noise]
        other = [r["result"]["test_accuracy"] for r in runs]
        assert cells[4] == f"{sum(other) / len(other):.1%} ({len(other)})"
        files = (ROOT / "results" / dataset).glob(f"dividemix-clean-{noise.replace(':', '-')}-seed?.json")
        mixed = [json.loads(path.read_text())["result"]["test_accuracy"] for path in files]
        assert cells[5] == (f"{sum(mixed) / len(mixed):.1%} ({len(mixed)})" if mixed else "not run")
        assert cells[6] == f"{sum(alone) / len(alone):.1%} ({len(alone)})"


def test_the_page_of_methods_quotes_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Where ours is better")[2]
    glc, mloc, plain = (
        json.loads((ROOT / "results" / "cifar10" / f"{method}-symmetric-0.8-seed1.json").read_text())
        for method in ("glc", "mloc", "cross-entropy")
    )

    def test_accuracy(record, epoch):
        return f"{100 * record['epochs'][epoch - 1]['test_accuracy']:.2f}"

    first = max(range(1, 76), key=lambda epoch: glc["epochs"][epoch - 1]["valid_accuracy"])
    selected, chosen = glc["result"]["best_epoch"], mloc["result"]["best_epoch"]
    rates = [f"{glc['epochs'][epoch - 1]['learning_rate']:.3f}" for epoch in (selected - 20, selected)]
    about_glc, about_mloc = page.partition("- **MLoC**")[::2]
    for number in (
        *(test_accuracy(glc, epoch) for epoch in (first, selected - 20, selected)),
        *(test_accuracy(plain, 70), *rates),
        *(f"{value:.3f}" for value in (glc["epochs"][-1]["t_diagonal"], glc["evaluation"]["transition"]["true"][0][0])),
    ):
        assert number in about_glc
    for number in (
        *(test_accuracy(mloc, epoch) for epoch in (75, 76, chosen, 150)),
        *(test_accuracy(plain, epoch) for epoch in (49, 50)),
        *(f"epoch {chosen}", f"{mloc['epochs'][75]['t_diagonal']:.3f}"),
        *(f"{record['evaluation']['relabel']['nll']:.3f}" for record in (mloc, plain)),
    ):
        assert number in about_mloc


def test_what_is_said_of_the_search_for_lambda_is_quoted_from_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Where λ was searched for")[2]
    about, below = page.partition("## Where ours is below")[::2]
    rows = [line.split(" | ") for line in about.splitlines() if re.match(r"\| [\d.]+ \|", line)]
    lost, spread = {}, []
    for column, method in enumerate(("fasten-no-lc", "fasten-oracle"), 1):
        records = [r for r in _on_cifar10(method) if _by_lambda_alone(r["run"])]
        by_seed = {}
        for record in records:
            by_seed.setdefault(record["run"]["seed"], []).append(record)
            drop = record["result"]["test_accuracy"] - record["result"]["test_accuracy_last"]
            lost.setdefault(record["run"]["options"].get("noisy_weight", 0.5), []).append(100 * drop)
        preferred = [max(some, key=lambda r: r["result"]["valid_accuracy"]) for some in by_seed.values()]
        told = {float(row[0].strip("| ")): row[column].strip("| ") for row in rows}
        for weight, cells in told.items():
            some = [r for r in records if r["run"]["options"].get("noisy_weight", 0.5) == weight]
            some.sort(key=lambda r: r["run"]["seed"])
            accuracies = [(f"{100 * r['result']['test_accuracy']:.2f}", r in preferred) for r in some]
            assert cells == (", ".join(f"**{value}**" if best else value for value, best in accuracies) or "–")
        assert sorted(by_seed) == [1, 2, 3, 4]
        for weight in (0.1, 0.5, 1.0):
            some = [r for r in records if r["run"]["options"].get("noisy_weight", 0.5) == weight]
            accuracies = [100 * r["result"]["test_accuracy"] for r in some]
            spread.append(max(accuracies) - min(accuracies))
        for name in ("valid_accuracy", "test_accuracy") if method == "fasten-no-lc" else ():  # the rule before this one
            for weight in (0.1, 0.5, 1.0) if name == "valid_accuracy" else (1.0,):
                some = [r for r in records if r["run"]["options"].get("noisy_weight", 0.5) == weight]
                first = [100 * r["result"][name] for r in some if r["run"]["seed"] <= 3]
                assert f"{fmean(first):.2f}" in about
        usual = [r["result"]["test_accuracy"] for r in records if make_page.usual(r["run"])]
        for mean in (fmean(r["result"]["test_accuracy"] for r in preferred), fmean(usual)):
            assert f"{100 * mean:.2f}" in about
    assert f"differs by {min(spread):.0f} to {max(spread):.0f} points from seed to seed" in about
    assert f"lose up to {max(map(max, lost.values())):.0f} points" in about
    assert f"(0.1: {min(lost[0.1]):.0f} to {max(lost[0.1]):.0f})" in about
    corrected = _on_cifar10("fasten")
    for weight in (0.1, 0.2, 0.5, 1.0):
        some = [r for r in corrected if _by_lambda_alone(r["run"])]
        some = [r for r in some if r["run"]["options"].get("noisy_weight", 0.5) == weight]
        assert f"{100 * fmean(r['result']['test_accuracy'] for r in some):.2f}" in about
    relabel = next(outcome for outcome in make_page.outcomes() if outcome.experiment.name == "relabel")
    found = {r.cell.column: r for r in relabel.results if r.cell.row == "fasten-no-lc"}
    for column in ("accuracy, overall", "accuracy, given label wrong"):
        assert f"{found[column].mean:.3f}" in below
    assert "below" not in {r.status for r in found.values()}


def test_what_is_said_of_fewer_clean_rows_is_quoted_from_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("- **FasTEN with fewer clean rows")[2]
    about = page.partition("\n- ")[0].replace("\n  ", " ")
    records = _on_cifar10("fasten", fewer=True)
    shown = [f"{100 * record['result']['test_accuracy']:.2f}" for record in records]
    shown += [f"{100 * record['result']['valid_accuracy']:.1f}" for record in records]
    as_listed = [r for r in records if r["run"]["options"].get("noisy_weight") == 0.1]
    fewer, tenth = (
        {r["run"]["clean"]: r for r in as_listed if ("per_class" in r["run"]["options"]) == t} for t in (0, 1)
    )
    assert len(records) == 13  # with a tenth in a batch also λ = 0.5 and 1, and once 0.05
    assert sorted(fewer) == sorted(tenth) == [100, 250, 500]
    for run in json.loads((ROOT / "benchmarks" / "few_clean_stopped.json").read_text())["runs"]:
        beside = [row["valid_accuracy"] for row in tenth[run["clean"]]["epochs"][: len(run["valid_accuracy"])]]
        shown += [f"{100 * max(found):.1f}" for found in (run["valid_accuracy"], beside)]
        shown += [f"{len(beside)} "]
    shown += [f"{fewer[rows]['epochs'][29][name]:.3f}" for rows in (100, 500) for name in T_DIAGONALS]
    first = [r for r in _on_cifar10("fasten") if r["run"]["seed"] == 1]
    (all_rows,) = (r for r in first if r["run"]["options"] == {"noisy_weight": 0.1})
    shown += [f"{all_rows['epochs'][29][name]:.3f}" for name in T_DIAGONALS]
    shown += [f"{fewer[100]['epochs'][0][name]:.1%}" for name in ("corrected_fraction", "label_accuracy")]
    shown += [f"{1 - fewer[100]['data']['noise_rate']:.1%}"]
    small = {}
    for run in json.loads((ROOT / "benchmarks" / "few_clean.json").read_text())["runs"]:
        small.setdefault((run["noisy_weight"], run["per_class"]), []).append(run)
    assert [len(runs) for runs in small.values()] == [3] * 6
    shown += [f"{100 * fmean(run['test_accuracy'] for run in runs):.1f}" for runs in small.values()]
    for name in T_DIAGONALS:
        shown += [f"{fmean(run['middle'][name] for run in small[0.1, per_class]):.3f}" for per_class in (10, 2)]
    assert [value for value in shown if value not in about] == []


def test_dividemix_with_clean_rows_on_cifar10_is_quoted_from_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## DivideMix with clean rows")[2]
    about = page.partition("On CIFAR-10 with 80%")[2].partition("\n## ")[0].replace("\n", " ")
    folder = ROOT / "results" / "cifar10"
    mixed, ours = (
        json.loads((folder / f"{method}-symmetric-0.8-seed1.json").read_text())
        for method in ("dividemix-clean", "fasten")
    )
    shown = [f"{100 * record['result']['test_accuracy']:.2f}" for record in (mixed, ours)]
    shown += [f"{100 * record['evaluation']['relabel']['accuracy']:.1f}" for record in (mixed, ours)]
    shown += [f"{record['evaluation']['detection']['posterior']['auroc']:.3f}" for record in (mixed, ours)]
    warm_up = [row for row in mixed["epochs"] if row["stage"] == "warm-up"]
    shown += [f"{100 * max(warm_up, key=lambda row: row['valid_accuracy'])['test_accuracy']:.2f}"]
    by_weight = [r for r in _on_cifar10("fasten") if r["run"]["seed"] == 1 and _by_lambda_alone(r["run"])]
    best = max(by_weight, key=lambda r: r["result"]["test_accuracy"])
    assert best["run"]["options"] == {"noisy_weight": 1.0}
    shown += [f"{100 * (mixed['result']['test_accuracy'] - best['result']['test_accuracy']):.1f} points"]
    assert [value for value in shown if value not in about] == []


def test_what_is_said_of_the_first_split_is_quoted_from_its_record():
    page = " ".join((ROOT / "docs" / "methods.md").read_text(encoding="utf-8").split())
    runs = json.loads((ROOT / "benchmarks" / "first_split.json").read_text())["runs"]
    found = {
        (clean, first): [r["test_accuracy"] for r in runs if (r["clean"], r["first_split"]) == (clean, first)]
        for clean in (100, 1000)
        for first in (True, False)
    }
    means = {key: f"{100 * fmean(value):.1f}" for key, value in found.items()}
    said = f"a test accuracy of {means[100, True]}% against {means[100, False]}% with 100 clean rows, "
    assert said + f"and of {means[1000, True]}% against {means[1000, False]}% with 1,000" in page
    assert {len(value) for value in found.values()} == {3}  # "three seeds"
    assert 100 * max(max(value) - min(value) for value in found.values()) < 4.1  # "where seeds differ by 4 points"


def test_what_is_found_where_nobody_verified_is_quoted_from_its_record():
    page = " ".join((ROOT / "docs" / "my-images.md").read_text(encoding="utf-8").split())
    runs = json.loads((ROOT / "benchmarks" / "unverified.json").read_text())["runs"]
    problems = sorted({(run["data"], run["wrong"], run["to_next"]) for run in runs})

    def span(way, name, digits=1):
        mine = [
            [r[name] for r in runs if (r["data"], r["wrong"], r["to_next"], r["way"]) == (*p, way)] for p in problems
        ]
        means = [100 * fmean(values) for values in mine]
        assert {len(values) for values in mine} == {3}  # "three seeds each"
        return f"{min(means):.{digits}f} to {max(means):.{digits}f}%"

    assert len(problems) == 5
    assert f"{span('unseen', 'found', 0)} of the wrong labels were found so, none without" in page
    assert span("by heart", "found") == "0.0 to 0.0%"
    before = f"{span('unseen', 'right')} of the labels were right after repair, where it was {span('unseen', 'before')}"
    assert before in page
    assert f"logistic regression, judged in the same way, ends with {span('logistic regression', 'right')}" in page


def test_what_the_page_of_the_report_promises_is_quoted_from_the_record():
    page = " ".join((ROOT / "docs" / "report.md").read_text(encoding="utf-8").split())
    record = json.loads((ROOT / "benchmarks" / "promises.json").read_text())
    first, last = record.pop("seeds")
    found = [kind for name, kind in record.items() if "verified by label" not in name]
    off, runs = [100 * kind["off"] for kind in found], len(found) * (last - first)
    held, promised, kept = (sum(kind[key] for kind in found) for key in ("interval_holds", "promised", "kept"))
    assert (last - first, promised) == (8, kept)  # "in eight runs each", "in all"
    assert f"p_wrong was off by {min(off):.1f} to {max(off):.1f} percentage points" in page
    single = [100 * kind["off_a_run"] for kind in found]
    assert f"and by {min(single):.1f} to {max(single):.1f} in a single run" in page
    assert f"held the truth in {held} of {runs} runs, and `--min-precision 0.8` was kept in all {kept} runs" in page


def test_what_is_said_of_detection_below_the_papers_is_quoted_from_the_records():
    about = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Where ours is below")[2]
    about = " ".join(about.partition("\n## ")[0].split())
    deep_knn, l2rw, mlac = (
        json.loads((ROOT / "results" / "cifar10" / f"{method}-symmetric-0.8-seed1.json").read_text())["evaluation"]
        for method in ("deep-knn", "l2rw", "mlac")
    )
    dropped, weight = deep_knn["detection"]["dropped"], l2rw["detection"]["minus_weight"]
    assert f"{dropped['auprc']:.3f} and {weight['auprc']:.3f} where the paper has" in about
    assert f"ours has {weight['auroc']:.3f})" in about
    assert f"{mlac['relabel']['accuracy']:.3f} right where the paper has" in about


def test_the_time_of_deep_knn_with_the_rows_that_it_kept_is_that_of_its_records():
    notes = " ".join((ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8").split())
    lines = json.loads((ROOT / "benchmarks" / "h200.json").read_text())["methods"]
    stages = {(line["method"], line["stage"]): (line["milliseconds"], line["updates"]) for line in lines}
    record = json.loads((ROOT / "results" / "cifar10" / "deep-knn-symmetric-0.8-seed1.json").read_text())
    kept, data = record["evaluation"]["facts"]["kept_fraction"], record["data"]
    noisy, clean, size = data["rows_noisy"], data["rows_clean"], record["run"]["recipe"]["batch_size"]
    shares = {"clean": 1, "union": 1, "filtered": math.ceil((kept * noisy + clean) / size) / ((noisy + clean) / size)}
    milliseconds = sum(share * math.prod(stages["deep-knn", stage]) for stage, share in shares.items())
    ratio = milliseconds / math.prod(stages["fasten", "train"])
    assert f"the {kept:.0%} of the noisy rows that its run on CIFAR-10 at 80% kept, its ratio is {ratio:.2f}" in notes


def test_what_is_said_of_spoilt_corrections_is_quoted_from_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("- **FasTEN with spoilt")[2]
    about = page.partition("\n- ")[0].replace("\n  ", " ")
    records = [r for r in _on_cifar10("fasten") if r["run"]["seed"] == 1]
    changed = [r for r in records if r["run"]["options"].get("perturbation")]
    plain = {r["run"]["options"].get("noisy_weight", 0.5): r["result"] for r in records if _by_lambda_alone(r["run"])}
    confident = json.loads((ROOT / "benchmarks" / "spoilt.json").read_text())["runs"]
    shown = [r["result"]["test_accuracy"] for r in changed]
    shown += [r["test_accuracy"] for r in confident]
    shown += [plain[weight][key] for weight in (0.5, 1) for key in ("test_accuracy", "test_accuracy_last")]
    shown += [plain[0.1]["test_accuracy_last"]]
    shown += [r["test_accuracy_last"] for r in confident if r["noisy_weight"] > 0.1]
    shown += [r["result"]["test_accuracy_last"] for r in changed if r["run"]["options"]["perturbation"] == 0.5]
    assert len(shown) == 18
    assert [f"{100 * value:.2f}" for value in shown if f"{100 * value:.2f}" not in about] == []
    (all_changed,) = [r for r in changed if r["run"]["options"]["perturbation"] == 1]
    (all_confident,) = [r for r in confident if r["perturbation"] == 1]
    assert f"{all_changed['epochs'][-1]['label_accuracy']:.1%} of the labels are right" in about
    assert f"against {1 - all_changed['data']['noise_rate']:.0%} of the given ones" in about
    assert f"{all_confident['label_accuracy_last']:.1%} are right" in about


def _by_lambda_alone(run):
    return set(run["options"]) <= {"noisy_weight"}


def _on_cifar10(method, fewer=False):
    """Its records under symmetric 80%, with the weights of the last update and T̂ of clean rows; those of fewer clean
    rows by themselves."""
    paths = (ROOT / "results" / "cifar10").glob(f"{method}-symmetric-0.8-seed*.json")
    records = [json.loads(path.read_text()) for path in paths]
    plain = [r for r in records if not r["run"]["recipe"].get("average") and "estimate" not in r["run"]["options"]]
    return [r for r in plain if bool(r["run"].get("clean")) == fewer]


def test_what_is_said_of_averaged_weights_on_cifar10_is_quoted_from_the_records():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Averaged weights")[2]
    about = page.partition("\n## ")[0].partition("On CIFAR-10")[2]
    records = [json.loads(p.read_text()) for p in (ROOT / "results" / "cifar10").glob("fasten-symmetric-0.8-seed1*")]
    mean = [r for r in records if r["run"]["recipe"].get("average")]
    (plain,) = [r for r in records if make_page.usual(r["run"])]
    (tenth,) = [r for r in mean if r["run"]["recipe"]["average"] == 0.1]
    shown = [r["result"]["test_accuracy"] for r in (plain, *mean)]
    for record in (plain, tenth):
        shown += [record["epochs"][48]["test_accuracy"], record["result"]["test_accuracy_last"]]
    assert [f"{100 * value:.2f}" for value in shown if f"{100 * value:.2f}" not in about] == []


def _lines_and_problems(section, record):
    """Each line of a section's table in docs/methods.md, beside the problem that it is of."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition(f"## {section}")[2]
    lines = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    found = json.loads((ROOT / "benchmarks" / record).read_text())["problems"]
    return [(line, *problem) for line, problem in zip(lines, found.items(), strict=True)]


def test_the_table_of_smaller_weights_is_that_of_its_record():
    for line, problem, weights in _lines_and_problems("A smaller λ", "noisy_weight.json"):
        accuracy, right = (
            ", ".join(f"{100 * weights[weight][key]:.1f}" for weight in ("0.5", "0.1", "0.05"))
            for key in ("accuracy", "corrected_labels_right")
        )
        assert line == f"| {' | '.join((*problem.rsplit(', ', 1), accuracy, right))} |"


def _about_noisy_t():
    """What docs/methods.md says of T̂ of the noisy rows, and the lines of its tables."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## T̂ of the noisy rows")[2]
    about = page.partition("\n## ")[0]
    return about, [line for line in about.splitlines() if line.startswith("| ")]


def test_the_table_of_t_of_noisy_rows_on_own_data_is_that_of_its_record():
    found = json.loads((ROOT / "benchmarks" / "estimate.json").read_text())["problems"]
    forms = {"accuracy": "{:.1%}", "corrected_labels_right": "{:.1%}", "detection_auroc": "{:.4f}"}
    for line, (problem, ways) in zip(_about_noisy_t()[1][1:9], found.items(), strict=True):
        pairs = [[form.format(ways[way][key]) for way in ("clean", "noisy")] for key, form in forms.items()]
        cells = [" → ".join(pair).replace("%", "") for pair in pairs]
        assert line == f"| {' | '.join((*problem.rsplit(', ', 1), *cells))} |"


def test_what_is_said_of_t_of_noisy_rows_on_cifar10_is_quoted_from_the_records():
    about, lines = _about_noisy_t()
    folder, told = ROOT / "results" / "cifar10", set()
    records = [json.loads(path.read_text()) for path in folder.glob("fasten-*symmetric-*.json")]
    for record in (r for r in records if r["run"]["options"].get("estimate") == "noisy"):
        run = record["run"]
        if run.get("clean"):
            assert f"{100 * record['result']['test_accuracy']:.2f}" in about
            continue
        usual = json.loads((folder / f"fasten-{run['noise'].replace(':', '-')}-seed{run['seed']}.json").read_text())
        keys, both = ("test_accuracy", "test_accuracy_last"), (usual, record)
        values = [f"{100 * r['result'][key]:.2f}" for r in both for key in keys]
        told.add(f"| {run['noise']} | {run['seed']} | {' | '.join(values)} |")
        if (run["noise"], run["seed"]) == ("symmetric:0.8", 1):
            assert all(f"{r['epochs'][-1]['label_accuracy']:.1%}" in about for r in both)
    assert told == set(lines[10:])


def test_the_table_of_averaged_weights_is_that_of_its_record():
    for line, problem, shares in _lines_and_problems("Averaged weights", "averaging.json"):
        plain, tenth, wide = (shares[share] for share in ("0.0", "0.1", "0.4"))
        accuracy, right = (
            [f"{100 * run[key]:.1f}" for run in (plain, tenth, wide)] for key in ("accuracy", "corrected_labels_right")
        )
        auroc = " → ".join(f"{run['detection_auroc']:.4f}" for run in (plain, tenth))
        cells = (*problem.rsplit(", ", 1), f"{accuracy[0]} → {accuracy[1]}", f"{right[0]} → {right[1]}", auroc)
        assert line == f"| {' | '.join((*cells, f'{accuracy[2]}, {right[2]}'))} |"
        assert all(tenth[key] > plain[key] for key in tenth.keys() - {"seconds"})


def test_the_table_of_dividemix_on_own_data_is_that_of_its_record():
    for line, problem, methods in _lines_and_problems("DivideMix with clean rows", "which_method.json"):
        ours, clean = (methods[name] for name in ("fasten", "dividemix-clean"))
        pairs = [f"{100 * ours[key]:.1f} → {100 * clean[key]:.1f}" for key in ("accuracy", "corrected_labels_right")]
        auroc = f"{ours['detection_auroc']:.3f} → {clean['detection_auroc']:.3f}"
        times = f"{clean['seconds'] / ours['seconds']:.1f}"
        assert line == f"| {' | '.join((*problem.rsplit(', ', 1), *pairs, auroc, times))} |"


def test_what_is_said_of_dividemix_on_own_data_is_quoted_from_its_record():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## DivideMix with clean rows")[2]
    said = " ".join(page.partition("\n## ")[0].split())
    gains, times = {"heavy": [], "light": []}, []
    for problem, methods in json.loads((ROOT / "benchmarks" / "which_method.json").read_text())["problems"].items():
        ours, mixed = methods["fasten"], methods["dividemix-clean"]
        found = [100 * (mixed[key] - ours[key]) for key in ("accuracy", "corrected_labels_right")]
        if problem.endswith(":0.8"):
            gains["heavy"].append(found)
            times.append(mixed["seconds"] / ours["seconds"])
        elif "Gaussian" in problem:
            gains["light"] += found
    accuracy, right = zip(*gains["heavy"], strict=True)
    assert f"{min(accuracy):.1f} to {max(accuracy):.1f} points of accuracy" in said
    assert f"{min(right):.1f} to {max(right):.1f} of right labels, in less than four times" in said
    assert max(times) < 4
    assert f"lose up to {-min(gains['light']):.1f}," in said


def test_what_the_readme_says_of_dividemix_on_digits_is_so():
    means = {noise: make_page.digits_means(some) for noise, some in make_page.digits_by_noise().items()}
    heavy = means["symmetric:0.8"]
    assert heavy["dividemix-clean"] > heavy["clean"] > heavy["fasten"]
    quoted = f"{100 * heavy['dividemix-clean']:.1f}% where FasTEN has {100 * heavy['fasten']:.1f}"
    assert quoted in " ".join((ROOT / "CHANGELOG.md").read_text().split())
    problems = json.loads((ROOT / "benchmarks" / "which_method.json").read_text())["problems"].values()
    times = [methods["dividemix-clean"]["seconds"] / methods["fasten"]["seconds"] for methods in problems]
    assert (round(min(times)), round(max(times))) == (2, 6)
    assert "in two to six times FasTEN's time" in " ".join((ROOT / "README.md").read_text().split())


def problems_of(name: str):
    problems = json.loads((ROOT / "benchmarks" / name).read_text())["problems"]
    return [(*problem.rsplit(", ", 1), ways) for problem, ways in problems.items()]


def test_what_is_said_of_the_mean_over_the_epochs_is_quoted_from_its_record():
    page = (ROOT / "docs" / "methods.md").read_text()
    longer = []
    for rows, noise, ways in problems_of("opinions.json"):
        last, mean = ways["last word"], ways["mean"]
        auroc, auprc = (
            f"{last[key]:.{n}f} → {mean[key]:.{n}f}" for key, n in (("detection_auroc", 4), ("detection_auprc", 3))
        )
        right = f"{100 * last['corrected_labels_right']:.1f} → {100 * mean['corrected_labels_right']:.1f}"
        assert f"| {rows} | {noise} | {auroc} | {auprc} | {right} |\n" in page
        assert mean["detection_auroc"] > last["detection_auroc"]
        assert mean["corrected_labels_right"] > last["corrected_labels_right"]
        longer.append(mean["seconds"] / last["seconds"])
    assert f"training takes {100 * min(longer) - 100:.0f} to {100 * max(longer) - 100:.0f}% longer here" in page


def test_what_is_said_of_cleanlab_on_own_data_is_quoted_from_its_record():
    page, ranked_better = (ROOT / "docs" / "my-table.md").read_text(), 0
    for rows, noise, ways in problems_of("cleanlab_on_own_data.json"):
        ours, *others = ways.values()
        cells = []
        for key, scale, digits in (("detection_auroc", 1, 3), ("corrected_labels_right", 100, 1), ("accuracy", 100, 1)):
            shown = [f"{scale * way[key]:.{digits}f}" for way in ways.values()]
            cells.append(", ".join(f"**{cell}**" if cell == max(shown) else cell for cell in shown))
        seconds = ", ".join(f"{way['seconds']:.1f}" for way in ways.values())
        assert f"| {rows} | {noise} | {' | '.join(cells)} | {seconds} |\n" in page
        assert all(ours["corrected_labels_right"] > other["corrected_labels_right"] for other in others)
        ranked_better += all(ours["detection_auroc"] > other["detection_auroc"] for other in others)
    assert ranked_better == 7
    assert "ranks wrong labels better on seven" in " ".join((ROOT / "README.md").read_text().split())


def test_what_is_said_of_networks_for_images_on_a_cpu_is_quoted_from_its_record():
    page = (ROOT / "docs" / "networks-and-export.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "benchmarks" / "images.json").read_text())
    assert record["seeds"] == 2  # "as means of two seeds"
    for images, networks in record["problems"].items():
        before, now = networks["small-cnn"], networks["pyramid-cnn"]
        cells = [
            f"{scale * before[key]:.{digits}f} → {scale * now[key]:.{digits}f}"
            for key, scale, digits in (
                ("accuracy", 100, 1),
                ("corrected_labels_right", 100, 1),
                ("detection_auroc", 1, 3),
            )
        ]
        assert f"| {images} | {' | '.join(cells)} |\n" in page
        assert all(now[key] > before[key] for key in ("accuracy", "corrected_labels_right", "detection_auroc"))


def test_what_is_said_of_the_time_of_networks_on_a_cpu_is_quoted_from_its_record():
    notes = " ".join((ROOT / "benchmarks" / "NOTES.md").read_text(encoding="utf-8").split())
    seconds = [
        next(line["milliseconds"] / 1000 for line in run["found"]["methods"] if line["method"] == "fasten")
        for run in json.loads((ROOT / "benchmarks" / "images_time.json").read_text())["runs"]
    ]
    small, pyramid, large_pyramid, resnet = seconds
    assert f"32×32 images takes {1000 * pyramid:.0f} ms, with `small-cnn` {1000 * small:.0f}," in notes
    assert f"on 160×160 images it takes {large_pyramid:.2f} s, with `imagenet-resnet18` {resnet:.1f} s" in notes
    assert f"160×160 pixels | – | {resnet / large_pyramid:.1f} times as fast |" in notes
    changes = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert f"takes {large_pyramid:.2f} seconds instead of {resnet:.1f}" in changes


def test_what_is_said_of_categories_is_quoted_from_its_record():
    page = (ROOT / "docs" / "my-table.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "benchmarks" / "categories.json").read_text())
    assert len(record["seeds"]) == 5  # "means of five seeds"
    names = ("numbers alone", "numbers, and categories scaled each by its own deviation", "**as it is done**")
    for rows, ways in record["problems"].items():
        for name, way in zip(names, ways.values(), strict=True):
            cells = f"{100 * way['accuracy']:.1f} | {100 * way['corrected_labels_right']:.1f}"
            assert f"| {rows.removesuffix(' rows')} | {name} | {cells} |\n" in page


def test_what_is_said_of_epochs_for_few_images_is_quoted_from_its_record():
    page = (ROOT / "docs" / "my-images.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "benchmarks" / "epochs.json").read_text())
    assert len(record["seeds"]) == 3  # "means of three seeds"
    for images, ways in record["problems"].items():
        cells = [
            " → ".join(f"{scale * way[key]:.{digits}f}" for way in (ways["30 epochs"], ways["chosen"]))
            for key, scale, digits in (
                *(("accuracy", 100, 1), ("corrected_labels_right", 100, 1)),
                ("detection_auroc", 1, 3),
            )
        ]
        assert f"| {images} | {' | '.join(cells)} |\n" in page
