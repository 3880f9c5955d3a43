"""Every table and figure of the paper: what it consists of, beside which numbers, and what it takes to make it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from example_record import example_record
from fasten.data.noise import corrupt, parse_noise
from fasten.datasets import check_noise, load_task
from fasten.experiments import EXPERIMENTS, MINIATURE, PAPER
from fasten.experiments.convergence import chi_square_points
from fasten.experiments.measures import (
    ACCURACY,
    CORRECTED_SHARE,
    DETECTION,
    DETECTION_META,
    RELABEL,
    RELABEL_META,
    TIME_RATIO,
)
from fasten.experiments.spec import Cell, Measure, key, status
from fasten.experiments.t_diagonal import estimates, labels_in_use
from fasten.methods import METHODS
from fasten.records import Run
from fasten.runs.building import build_method, plan_of

PACKAGED = Path(__file__).parents[2] / "src" / "fasten" / "experiments" / "paper.json"
ORIGINAL = Path(__file__).parents[3] / "shared" / "paper-tables.json"  # not part of the repository
NAMES = (
    *("time-accuracy", "table1", "clothing1m", "training-time", "relabel", "robustness", "t-diagonal", "convergence"),
    *("cifar-n", "correction", "threshold", "oversampling", "glc-oracle", "mloc", "detection", "clean-size", "k"),
    "lambda",
)
TABLES = {
    "table1": "synthetic",
    "training-time": "training_time",
    "cifar-n": "cifarn",
    "glc-oracle": "glc_oracle",
    "clean-size": "clean_size",
    **{name: name for name in ("clothing1m", "relabel", "oversampling", "mloc", "detection", "k", "lambda")},
}

every = pytest.mark.parametrize("name", EXPERIMENTS)
both = pytest.mark.parametrize("setting", [PAPER, MINIATURE], ids=["paper", "miniature"])


def cell(name: str, panel: str, row: str, column: str) -> Cell:
    (found,) = [c for c in EXPERIMENTS[name](PAPER).cells if (c.panel, c.row, c.column) == (panel, row, column)]
    return found


def the_run(name: str, panel: str, row: str, column: str) -> Run:
    found = cell(name, panel, row, column).run
    assert found is not None
    return found


def all_runs(setting) -> dict[str, Run]:
    return {key(run): run for make in EXPERIMENTS.values() for run in make(setting).runs()}


def numbers(value, without=("hours", "x")) -> list[float]:
    """All numbers of a table, in no order; of a mean with its interval, the mean."""
    if isinstance(value, dict):
        parts = [value["mean"]] if "mean" in value else [v for k, v in value.items() if k not in without]
        return sorted(number for part in parts for number in numbers(part))
    return [value] if isinstance(value, float) else []


def test_every_table_and_figure_of_the_paper_has_its_name():
    assert tuple(EXPERIMENTS) == NAMES


@both
@every
def test_an_experiment_says_what_it_is(name, setting):
    made = EXPERIMENTS[name](setting)
    assert made.name == name
    assert made.title
    assert len(made.about) > 40
    assert made.cells or made.curves
    assert bool(made.x and made.y) == (made.kind == "figure")


@both
@every
def test_no_two_cells_have_the_same_place(name, setting):
    made = EXPERIMENTS[name](setting)
    places = [(c.panel, c.row, c.column) for c in made.cells]
    assert len(set(places)) == len(places)
    lines = [(c.panel, c.row) for c in made.curves]
    assert len(set(lines)) == len(lines)


@both
@every
def test_a_run_survives_json_and_can_be_made(name, setting):
    for run in EXPERIMENTS[name](setting).runs():
        assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run
        assert run.method in METHODS
        assert run.seed == 0
        check_noise(run.dataset, run.noise)


@every
def test_a_cell_is_run_or_timed_or_quoted(name):
    for c in EXPERIMENTS[name](PAPER).cells:
        assert (c.run is not None) + c.bench + bool(c.source) == 1
        assert c.run is not None or c.paper is not None


def test_table_1_has_eight_methods_six_noises_and_two_data_sets():
    runs = EXPERIMENTS["table1"](PAPER).runs()
    assert len(runs) == 8 * 6 * 2
    assert len({run.method for run in runs}) == 8
    assert {run.dataset for run in runs} == {"cifar10", "cifar100"}
    assert len(EXPERIMENTS["table1"](PAPER).runs([1, 2, 3])) == 3 * 96


def test_equal_runs_are_shared_between_tables():
    usual = the_run("table1", "CIFAR-10", "fasten", "symmetric 80%")
    assert usual == Run("cifar10", "symmetric:0.8")  # the paper's protocol is what `fasten train` does by itself
    assert the_run("lambda", "CIFAR-10", "λ = 0.5", "symmetric 80%") == usual
    assert the_run("threshold", "", "accuracy", "ρ = 0.8") == usual
    assert the_run("relabel", "", "fasten", "NLL, overall") == usual
    assert the_run("correction", "CIFAR-10", "fasten", "80%") == usual
    ablation = the_run("lambda", "CIFAR-10", "λ = 0.1", "symmetric 80%")
    diagonals = EXPERIMENTS["t-diagonal"](PAPER).curves
    assert [c.run for c in diagonals if "asym" not in c.panel] == [usual, usual, ablation, ablation]
    assert the_run("k", "CIFAR-10", "K = 10", "symmetric 80%") == ablation
    assert the_run("clean-size", "", "1000 clean rows", "fasten") == ablation
    assert the_run("robustness", "", "fasten", "0%") == ablation
    assert the_run("robustness", "", "mlac", "0%") == the_run("table1", "CIFAR-10", "mlac", "symmetric 80%")


def test_lambda_is_searched_for_where_the_paper_does_not_state_it():
    for place in (
        ("oversampling", "CIFAR-10", "fasten-no-lc", "symmetric 80%"),
        ("glc-oracle", "CIFAR-10", "fasten-oracle", "asymmetric 40%"),
        ("mloc", "CIFAR-100", "fasten-no-lc", "symmetric 20%"),
        ("relabel", "", "fasten-no-lc", "NLL, overall"),
    ):
        found = cell(*place)
        assert found.run.options == {}
        assert [run.options["noisy_weight"] for run in found.rivals] == [0.01, 0.05, 0.1, 0.2, 1.0]
        assert all(replace(run, options={}) == found.run for run in found.rivals)
    shown = cell("lambda", "CIFAR-10, symmetric 80%", "λ = 0.2", "fasten-no-lc")
    assert (shown.run, shown.paper) == (cell("relabel", "", "fasten-no-lc", "NLL, overall").rivals[3], None)
    assert cell("oversampling", "CIFAR-10", "naive-oversampling", "symmetric 80%").rivals == ()
    assert cell("relabel", "", "fasten", "NLL, overall").rivals == ()
    assert cell("correction", "CIFAR-10", "fasten-no-lc", "80%").rivals == ()  # λ is 0.5 with and without correction


def test_the_ablations_differ_from_the_usual_run_in_what_they_study():
    assert the_run("robustness", "", "fasten", "30%").options == {"noisy_weight": 0.1, "perturbation": 0.3}
    assert the_run("robustness", "", "mslc", "30%").options == {"perturbation": 0.3}
    assert the_run("clean-size", "", "250 clean rows", "mlac").clean == 250
    k2 = the_run("k", "CIFAR-10", "K = 2", "asymmetric 40%")
    assert (k2.recipe.batch_size, k2.options) == (20, {"noisy_weight": 0.1})
    small = replace(k2, recipe=replace(k2.recipe, net="small-cnn"))
    draws = plan_of(build_method(small, load_task("digits")), small.recipe)[0].draws
    assert {name: draw.size for name, draw in draws.items()} == {"noisy": 20, "clean": 20}


def test_clothing1m_has_the_papers_schedules():
    made = {c.row: c.run.recipe for c in EXPERIMENTS["clothing1m"](PAPER).cells if c.run is not None}
    assert set(made) == {"l2rw", "fasten-no-lc", "fasten"}
    assert [(r.epochs, r.milestones) for r in made.values()] == [(10, (6,)), (2, (2,)), (2, (2,))]
    assert {(r.net, r.batch_size, r.rate) for r in made.values()} == {("imagenet-resnet50", 42, 0.01)}
    assert all(recipe.weights for recipe in made.values())


@pytest.mark.parametrize(
    ("place", "mean", "ci95"),
    [  # typed from the paper
        (("table1", "CIFAR-100", "mslc", "asymmetric 40%"), 66.99, 0.69),
        (("table1", "CIFAR-10", "l2rw", "symmetric 20%"), 88.26, 0.79),
        (("time-accuracy", "CIFAR-10, symmetric 20%", "l2rw", "accuracy"), 86.26, None),
        (("time-accuracy", "CIFAR-100, symmetric 80%", "fasten", "accuracy"), 37.36, 1.15),
        (("time-accuracy", "CIFAR-100, symmetric 80%", "mlac", "time ratio"), 10.2 / 1.54, None),
        (("clothing1m", "with a clean set", "l2rw", "accuracy"), 72.04, 0.24),
        (("training-time", "", "mlac", "time ratio"), 6.64, None),
        (("training-time", "", "glc", "hours, RTX 2080 Ti"), 2.29, None),
        (("relabel", "", "mslc-meta", "NLL, incorrect"), 1.599, None),
        (("relabel", "", "mlac-meta", "accuracy, overall"), 0.7672, None),
        (("robustness", "", "mlac", "30%"), 52.96, None),
        (("robustness", "", "mslc", "0%"), 64.9, 4.84),
        (("robustness", "", "fasten-no-lc", "100%"), 71.25, None),
        (("cifar-n", "", "mloc", "CIFAR-100N"), 61.49, None),
        (("oversampling", "CIFAR-10", "naive-oversampling", "symmetric 60%"), 83.9, None),
        (("glc-oracle", "CIFAR-10", "fasten-oracle", "symmetric 40%"), 88.71, None),
        (("glc-oracle", "CIFAR-10", "glc", "symmetric 40%"), 85.3, 0.73),
        (("mloc", "CIFAR-10", "fasten-oracle", "symmetric 40%"), 88.71, None),
        (("mloc", "CIFAR-10", "fasten-no-lc", "symmetric 40%"), None, None),
        (("detection", "", "l2rw-meta", "AUROC"), 0.4898, None),
        (("clean-size", "", "1000 clean rows", "fasten"), 77.88, 1.09),
        (("k", "CIFAR-10", "K = 6", "symmetric 40%"), 90.07, None),  # by chance as in table 1
        (("k", "CIFAR-10", "K = 10", "asymmetric 20%"), 91.95, 0.22),
        (("lambda", "CIFAR-100", "λ = 0.01", "symmetric 60%"), 43.65, 1.06),
    ],
)
def test_a_cell_has_the_papers_number(place, mean, ci95):
    found = cell(*place)
    assert (found.paper, found.ci95) == (mean, ci95)


@pytest.mark.parametrize("name", TABLES)
def test_no_number_of_a_table_is_left_out(name):
    printed = numbers(json.loads(PACKAGED.read_text(encoding="utf-8"))[name])
    cells = [c for c in EXPERIMENTS[name](PAPER).cells if "hours" not in c.column]
    assert sorted(c.paper for c in cells if c.paper is not None) == printed


@pytest.mark.skipif(not ORIGINAL.exists(), reason="the tables as they were read from the paper are not here")
def test_the_package_holds_the_papers_tables():
    mine, theirs = (json.loads(path.read_text(encoding="utf-8")) for path in (PACKAGED, ORIGINAL))
    for name, table in TABLES.items():
        same = _renamed(theirs[f"table_{table}"]["data"], mine[name])
        assert same == mine[name], name
    figures = theirs["figures"]
    assert mine["time-accuracy"] == figures["time_accuracy"]["data"]
    assert mine["t-diagonal"] == figures["t_diagonal"]["data"]
    assert mine["robustness"] == {"x": figures["robustness"]["x"], **figures["robustness"]["data"]}
    medians = figures["convergence"]["fasten_median_per_500_iterations_starting_at"]
    assert mine["convergence"]["fasten-no-lc"] == [[int(start) + 250, value] for start, value in medians.items()]
    assert [y for _, y in mine["convergence"]["mloc"]] == list(figures["convergence"]["mloc"].values())
    assert {y for _, y in mine["convergence"]["glc"]} == {figures["convergence"]["glc_constant"]}


def _renamed(theirs, mine):
    """With our words for groups and sources, and without what is bold."""
    if not isinstance(theirs, dict):
        return mine if isinstance(theirs, str) else theirs
    names = {key: key.replace("fasten-oracle-no-lc", "fasten-oracle") for key in theirs if key != "bold"}
    return {name: _renamed(theirs[key], mine.get(name)) for key, name in names.items()}


def test_the_miniature_shares_at_most_forty_runs():
    runs = all_runs(MINIATURE)
    assert len(runs) <= 40
    assert {run.dataset for run in runs.values()} == {"digits"}
    assert {run.method for run in runs.values()} == {run.method for run in all_runs(PAPER).values()}


def test_the_miniature_has_all_stages_in_three_epochs():
    for run in all_runs(MINIATURE).values():
        task = load_task(run.dataset, run.noise, run.seed, clean=run.clean)
        plan = plan_of(build_method(run, task), run.recipe)
        assert len(plan) == METHODS[run.method].stages
        assert sum(stage.epochs for stage in plan) <= 3


@every
def test_the_miniature_is_a_part_of_the_paper(name):
    small, large = EXPERIMENTS[name](MINIATURE), EXPERIMENTS[name](PAPER)
    shown = {(c.panel, c.row, c.column): (c.paper, c.ci95, c.x, c.measure) for c in large.cells}
    assert all(shown[c.panel, c.row, c.column] == (c.paper, c.ci95, c.x, c.measure) for c in small.cells)
    assert [(c.panel, c.row, c.paper) for c in small.curves] == [(c.panel, c.row, c.paper) for c in large.curves]
    assert {c.row for c in small.cells} == {c.row for c in large.cells} or name in ("k", "lambda", "clean-size")


def test_what_is_said_of_the_papers_own_numbers_is_so():
    found = {(c.row, c.column): c.paper for c in EXPERIMENTS["relabel"](PAPER).cells}
    pairs = {row: (found[row, "accuracy, overall"], found[row, "accuracy, incorrect"]) for row, _ in found}
    apart = {row: abs(overall - incorrect) for row, (overall, incorrect) in pairs.items() if row != "mlac-meta"}
    about = EXPERIMENTS["relabel"](PAPER).about
    assert f"differ by {max(apart[row] for row in apart if row != 'mslc-meta'):.4f} at most" in about
    all_rows, incorrect = pairs["mslc-meta"]
    assert f"right for {all_rows:.4f} of all rows, the share of right given labels, and for {incorrect:.4f} of" in about
    # As by chance: the accuracy on 72% of 44,000 rows, drawn at random from them, against that on all.
    for row, distance in apart.items():
        rate = pairs[row][0]
        assert distance < 2.5 * math.sqrt(rate * (1 - rate) * (1 / 0.72 - 1) / 44_000)
    plotted, printed = (
        cell(*place, "l2rw", column).paper
        for *place, column in (
            ("time-accuracy", "CIFAR-10, symmetric 20%", "accuracy"),
            ("table1", "CIFAR-10", "symmetric 20%"),
        )
    )
    assert f"at {plotted}, where its table 1 has {printed}" in EXPERIMENTS["time-accuracy"](PAPER).about
    level, other = (
        cell(*place).paper
        for place in (
            ("robustness", "", "fasten-no-lc", "0%"),
            ("oversampling", "CIFAR-10", "fasten-no-lc", "symmetric 80%"),
        )
    )
    assert f"plots {level}, where its tables have {other}" in EXPERIMENTS["robustness"](PAPER).about
    hours = {c.row: c.paper for c in EXPERIMENTS["training-time"](PAPER).cells if "hours" in c.column}
    ratio, printed = hours["mlac"] / hours["fasten"], cell("training-time", "", "mlac", "time ratio").paper
    said = f"({hours['mlac']} / {hours['fasten']} = {ratio:.2f}, printed {printed})"
    assert said in EXPERIMENTS["training-time"](PAPER).about


def test_rows_that_are_wrong_by_labels_drawn_anew_are_like_all_rows():
    """However a classifier fares on the labels that it learnt by heart: what stands for the paper's incorrect rows."""
    rng, noise = np.random.default_rng(0), parse_noise("symmetric:0.8")
    truth = rng.integers(10, size=100_000)
    learnt, drawn_anew = (corrupt(truth, noise, 10, rng).labels for _ in range(2))
    says = np.where(rng.random(len(truth)) < 0.3, learnt, truth)  # three wrong labels in ten are known by heart
    right = says == truth
    assert right[learnt != truth].mean() < right.mean() - 0.05
    assert right[drawn_anew != truth].mean() == pytest.approx(right.mean(), abs=0.005)


def test_measures_read_records():
    record = example_record(num_epochs=60)
    record["result"]["test_accuracy"] = 0.7952
    record["epochs"][record["result"]["best_epoch"] - 1]["corrected_fraction"] = 0.25
    record["evaluation"]["detection"]["minus_weight"] = {"auroc": 0.6, "auprc": 0.7}
    assert ACCURACY.of(record) == pytest.approx(79.52)
    assert CORRECTED_SHARE.of(record) == 25
    assert {name: m.of(record) for name, m in RELABEL.items()} == {
        "accuracy, overall": 0.9532,
        "accuracy, incorrect": 0.9532,  # by labels that were drawn anew
        "accuracy, given label wrong": 0.9417,
        "NLL, overall": 0.2019,
        "NLL, incorrect": 0.2019,
        "NLL, given label wrong": 0.3084,
    }
    record["evaluation"]["relabel_corrected"] = {"accuracy": 0.5, "accuracy_wrong": 0.25}
    assert [RELABEL_META[m]["accuracy, incorrect"].of(record) for m in ("mslc", "mlac")] == [0.5, 0.25]
    assert [m.of(record) for m in DETECTION.values()] == [0.9813, 0.9722]
    assert [m.of(record) for m in DETECTION_META["l2rw"].values()] == [0.6, 0.7]
    assert [m.of(record) for m in DETECTION_META["mlac"].values()] == [None, None]  # it has no soft labels


@every
def test_an_unfinished_run_has_no_numbers(name):
    record = example_record(num_epochs=4) | {"result": None, "evaluation": None, "epochs": []}
    made = EXPERIMENTS[name](PAPER)
    assert {c.measure.of(record) for c in made.cells} <= {None}
    assert all(len(c.of(record)) == 0 for c in made.curves)


def test_chi_square_stands_at_the_update_that_ends_its_group():
    record = example_record(num_epochs=3)
    record["run"] |= {"method": "mloc", "recipe": {"batch_size": 100}}
    record["data"] |= {"rows_noisy": 10_150, "rows_clean": 1_000}  # 102 updates an epoch
    groups = [len(group) for group in np.array_split(np.arange(102), 44)]
    for row, chi2 in zip(record["epochs"], [None, [0.5] * 44, [0.25] * 44], strict=True):
        row["chi2"] = chi2
    ends = np.cumsum(groups * 2).tolist()  # counted from the second epoch, the first with a T̂
    assert chi_square_points(record) == list(zip(ends, [0.5] * 44 + [0.25] * 44, strict=True))
    record["run"]["method"] = "glc"  # goes over both sets: 112 updates
    assert chi_square_points(record)[43][0] == 112
    record["data"]["rows_noisy"] = 4_000_000
    assert chi_square_points(record)[-1][0] <= 5000


def test_a_diagonal_has_a_point_for_each_epoch_that_knows_it():
    record = {"epochs": [{"epoch": 1, "t_diagonal": None}, {"epoch": 2, "t_diagonal": 0.5}, {"epoch": 3}]}
    assert estimates(record) == ((2, 0.5),)
    paper = {(c.panel, c.row): c.paper for c in EXPERIMENTS["t-diagonal"](PAPER).curves}
    assert paper["symmetric 80%, λ = 0.1", "true"][0] == (1, 0.2791)
    assert paper["asymmetric 40%, λ = 0.5", "estimated"][-1] == (70, 0.9983)
    assert {len(points) for points in paper.values()} == {70}


def test_the_true_diagonal_is_of_the_labels_that_an_epoch_trains_on_as_in_the_paper():
    """Each row comes once in an epoch, with the label that the epoch before left it: T̂ is of those labels."""
    rows = [{"epoch": 1, "t_diagonal_true": 0.3}, {"epoch": 2, "t_diagonal_true": 0.5}]
    record = {"data": {"noise_rate": 0.72}, "epochs": rows}
    assert labels_in_use(record) == ((1, pytest.approx(0.28)), (2, 0.3))
    assert labels_in_use({"data": {"noise_rate": None}, "epochs": [{"epoch": 1}, {"epoch": 2}]}) == ()
    curves = {(c.panel, c.row): c for c in EXPERIMENTS["t-diagonal"](PAPER).curves}
    for (panel, row), curve in curves.items():
        if row == "true":  # the paper's lines begin with the labels as given
            assert curve.of(record) == labels_in_use(record)
            assert curve.paper[0][1] == pytest.approx(0.8 if "asymmetric" in panel else 0.28, abs=0.005)


def judged(measure: Measure, paper: float, ci95: float | None, *means: float) -> list[str]:
    return [status(mean, Cell("row", "column", measure, paper, ci95, Run("cifar10"))) for mean in means]


def test_a_status_is_the_papers_number_its_interval_and_the_tolerance():
    words = ["below", "reproduced", "reproduced", "better"]
    assert judged(ACCURACY, 79.52, 0.78, 78.23, 78.24, 80.80, 80.81) == words  # ± 0.78 ± 0.5 points
    assert judged(ACCURACY, 74.19, None, 73.68, 73.69, 74.69, 74.70) == words
    assert judged(RELABEL["accuracy, overall"], 0.7847, None, 0.7746, 0.7747, 0.7947, 0.7948) == words
    assert judged(DETECTION["AUROC"], 0.9651, None, 0.955, 0.9551, 0.9751, 0.9752) == words


def test_a_status_is_turned_round_where_lower_is_better():
    words = ["better", "reproduced", "reproduced", "below"]
    assert judged(RELABEL["NLL, overall"], 1.0, None, 0.949, 0.95, 1.05, 1.051) == words  # ± 5%
    assert judged(TIME_RATIO, 2.0, None, 1.89, 1.9, 2.1, 2.11) == words


def test_a_cell_without_a_run_is_quoted_unless_a_bench_can_fill_it():
    timed, hours = (c for c in EXPERIMENTS["training-time"](PAPER).cells if c.row == "mlac")
    assert (status(None, timed), status(6.5, timed), status(7.5, timed)) == ("not run", "reproduced", "below")
    assert status(None, hours) == "quoted"
    assert status(None, cell("clothing1m", "with a clean set", "glc", "accuracy")) == "quoted"
    assert status(None, cell("correction", "CIFAR-10", "fasten", "20%")) == "not run"
    assert status(91.0, cell("correction", "CIFAR-10", "fasten", "20%")) == "not in the paper"
