from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasten.audit import write_transition
from fasten.data.noise import KINDS, Noise, corrupt, parse_noise, transition_of
from reference.metrics import ref_counted_transition

FLIPS = {0: (1,), 2: (3, 4), 3: (2,)}
RATED = ["symmetric", "symmetric-exclusive", "asymmetric", "pair"]

seeds = st.integers(0, 2**32 - 1)
rates = st.floats(0, 1, exclude_max=True)
truths = st.lists(st.integers(0, 4), max_size=60).map(lambda labels: np.array(labels, np.int64))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ref_transition(kind: str, rate: float, n: int, flips: dict[int, tuple[int, ...]]) -> np.ndarray:
    T = np.zeros((n, n))
    for i in range(n):
        if kind == "symmetric":
            goes = {j: 1 / n for j in range(n)}
        elif kind == "symmetric-exclusive":
            goes = {j: 1 / (n - 1) for j in range(n) if j != i}
        elif kind == "pair":
            goes = {(i + 1) % n: 1.0}
        else:
            goes = {j: 1 / len(flips[i]) for j in flips[i]} if i in flips else {i: 1.0}
        T[i, i] += 1 - rate
        for j, share in goes.items():
            T[i, j] += rate * share
    return T


@given(st.sampled_from(RATED), rates)
def test_noise_survives_being_written_and_read(kind: str, rate: float) -> None:
    noise = parse_noise(f"{kind}:{rate!r}")
    assert (noise.kind, noise.rate) == (kind, rate)
    assert parse_noise(str(noise)) == noise


@pytest.mark.parametrize("text", ["none", "matrix:a folder/T.csv", "matrix:C:/noise.npy", "symmetric:0.8", "pair:0.45"])
def test_noise_is_written_as_the_command_line_takes_it(text: str) -> None:
    assert str(parse_noise(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symetric:0.4", "unknown noise 'symetric'; did you mean 'symmetric'"),
        ("foo:1", "unknown noise 'foo'; known: none, symmetric"),
        ("0.2", "unknown noise '0.2'; write its kind and rate, such as symmetric:0.4; known: none, symmetric"),
        ("", "unknown noise ''"),
        ("symmetric", "symmetric noise needs a rate; write 40% as symmetric:0.4"),
        ("pair:", r"noise rate must be in \[0, 1\), got ''; write 40% as 0.4"),
        ("pair:40%", r"noise rate must be in \[0, 1\), got '40%'; write 40% as 0.4"),
        ("symmetric:40", r"noise rate must be in \[0, 1\), got 40.0; write 40% as 0.4"),
        ("symmetric:1", r"noise rate must be in \[0, 1\), got 1.0"),
        ("symmetric:-0.1", r"noise rate must be in \[0, 1\), got -0.1"),
        ("symmetric:nan", r"noise rate must be in \[0, 1\), got nan"),
        ("none:0.4", "none noise takes no rate, got 0.4"),
        ("matrix", "write matrix:FILE"),
        ("matrix:", "write matrix:FILE"),
    ],
)
def test_noise_that_cannot_be_is_refused_with_its_cure(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_noise(text)


def test_noise_built_by_hand_is_checked_too() -> None:
    with pytest.raises(ValueError, match="unknown noise 'sym'"):
        Noise("sym", 0.4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only matrix:FILE takes one"):
        Noise("pair", 0.4, path="T.csv")


@given(st.sampled_from(RATED), rates)
def test_transition_matches_the_reference_and_its_rows_sum_to_one(kind: str, rate: float) -> None:
    T = transition_of(parse_noise(f"{kind}:{rate!r}"), 5, FLIPS)
    np.testing.assert_allclose(T, ref_transition(kind, rate, 5, FLIPS), atol=1e-12)
    np.testing.assert_allclose(T.sum(1), 1, rtol=1e-12)


def test_transition_of_cifar10_is_that_of_the_protocol() -> None:
    symmetric = transition_of(parse_noise("symmetric:0.8"), 10)
    np.testing.assert_allclose(np.diag(symmetric), 0.28)
    np.testing.assert_allclose(symmetric[0, 1:], 0.08)
    asymmetric = transition_of(parse_noise("asymmetric:0.4"), 10, {9: (1,), 2: (0,), 4: (7,), 3: (5,), 5: (3,)})
    np.testing.assert_allclose(np.diag(asymmetric), [1, 1, 0.6, 0.6, 0.6, 0.6, 1, 1, 1, 0.6])
    assert asymmetric[9, 1] == asymmetric[3, 5] == asymmetric[5, 3] == 0.4


@given(st.sampled_from(KINDS[:-1]), truths, seeds)
def test_noise_at_rate_0_changes_nothing(kind: str, truth: np.ndarray, seed: int) -> None:
    noisy = corrupt(truth, parse_noise("none" if kind == "none" else f"{kind}:0"), 5, rng(seed), FLIPS)
    np.testing.assert_array_equal(noisy.labels, truth)
    np.testing.assert_array_equal(noisy.transition, np.eye(5))


def test_a_rate_is_what_its_digits_say_whatever_floats_make_of_it():
    """0.7 × 44,000 is 30,799.99… in floats, and 30,800 by the rate as it is written."""
    truth = np.zeros(44_000, np.int64)
    for percent in range(1, 100):
        noise = parse_noise(f"symmetric-exclusive:{percent / 100}")
        wrong = (corrupt(truth, noise, 3, np.random.default_rng(0)).labels != truth).sum()
        assert wrong == percent * 440


@given(st.sampled_from(["symmetric-exclusive", "pair"]), truths, rates, seeds)
def test_noise_that_never_keeps_a_label_makes_exactly_the_floor_wrong(
    kind: str, truth: np.ndarray, rate: float, seed: int
) -> None:
    noisy = corrupt(truth, parse_noise(f"{kind}:{rate!r}"), 5, rng(seed))
    assert (noisy.labels != truth).sum() == math.floor(Fraction(str(rate)) * len(truth))


@given(st.sampled_from(RATED), truths, rates, seeds)
def test_labels_go_only_where_the_transition_allows(kind: str, truth: np.ndarray, rate: float, seed: int) -> None:
    before = truth.copy()
    noisy = corrupt(truth, parse_noise(f"{kind}:{rate!r}"), 5, rng(seed), FLIPS)
    np.testing.assert_array_equal(truth, before)
    assert noisy.labels.dtype == np.int64
    assert (noisy.transition[truth, noisy.labels] > 0).all()
    assert (noisy.labels != truth).sum() <= math.floor(Fraction(str(rate)) * len(truth))


@pytest.mark.parametrize("kind", RATED)
@pytest.mark.parametrize("rate", [0.2, 0.8])
def test_the_counted_transition_is_close_to_the_analytic_one(kind: str, rate: float) -> None:
    truth = np.arange(100_000) % 5
    noisy = corrupt(truth, parse_noise(f"{kind}:{rate}"), 5, rng(1), FLIPS)
    np.testing.assert_allclose(
        ref_counted_transition(truth, noisy.labels, 5), noisy.transition, atol=0.02
    )  # about six deviations


def test_symmetric_noise_may_keep_the_label_so_that_fewer_are_wrong() -> None:
    truth = np.arange(44_000) % 10
    labels = corrupt(truth, parse_noise("symmetric:0.8"), 10, rng(2)).labels
    assert np.mean(labels != truth) == pytest.approx(0.72, abs=0.01)


def test_noise_is_drawn_over_the_whole_set_and_not_class_by_class() -> None:
    truth = np.arange(1000) % 5
    per_class = [
        np.bincount(truth[corrupt(truth, parse_noise("pair:0.5"), 5, rng(seed)).labels != truth]) for seed in range(5)
    ]
    assert all(counts.sum() == 500 for counts in per_class)
    assert np.ptp(np.stack(per_class)) > 0


@given(st.permutations(range(5)), seeds)
def test_renaming_the_classes_renames_the_transition(names: list[int], seed: int) -> None:
    flips = {names[c]: tuple(names[t] for t in targets) for c, targets in FLIPS.items()}
    plain = transition_of(parse_noise("asymmetric:0.3"), 5, FLIPS)
    renamed = transition_of(parse_noise("asymmetric:0.3"), 5, flips)
    np.testing.assert_allclose(renamed[np.ix_(names, names)], plain, rtol=1e-12)


def test_noise_repeats_from_the_same_seed_and_differs_from_another() -> None:
    truth = np.arange(500) % 5
    first, again, other = (corrupt(truth, parse_noise("symmetric:0.5"), 5, rng(seed)).labels for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("flips", [None, {}])
def test_asymmetric_noise_without_a_map_is_refused(flips: dict[int, tuple[int, ...]] | None) -> None:
    with pytest.raises(ValueError, match=r"CIFAR-10, CIFAR-100 and digits have such a map.* use pair:R"):
        transition_of(parse_noise("asymmetric:0.4"), 5, flips)


def test_noise_on_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="needs two classes"):
        transition_of(parse_noise("pair:0.4"), 1)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="labels run from 0 to 3, outside the 3 classes"):
        corrupt(np.arange(4), parse_noise("none"), 3, rng())


MATRIX = np.array([[0.5, 0.5, 0], [0, 1, 0], [0.25, 0.25, 0.5]])


def write_matrix(path: Path, matrix: np.ndarray) -> str:
    if path.suffix == ".csv":
        path.write_text("\n".join(",".join(str(cell) for cell in row) for row in matrix) + "\n")
    elif path.suffix == ".npy":
        np.save(path, matrix)
    else:
        np.savez(path, T=matrix)
    return f"matrix:{path}"


@pytest.mark.parametrize("name", ["T.csv", "T.npy", "T.npz"])
def test_a_matrix_file_gives_the_transition_and_the_labels_follow_it(tmp_path: Path, name: str) -> None:
    noise = parse_noise(write_matrix(tmp_path / name, MATRIX))
    truth = np.arange(30_000) % 3
    noisy = corrupt(truth, noise, 3, rng())
    np.testing.assert_allclose(noisy.transition, MATRIX, rtol=1e-12)
    np.testing.assert_allclose(ref_counted_transition(truth, noisy.labels, 3), MATRIX, atol=0.02)


@pytest.mark.parametrize("names", [list("abcdefghij"), ["é,", 'x"y', "\r", "=1", "'a", *map(str, range(5))]])
def test_what_a_run_wrote_as_its_transition_can_be_injected(tmp_path: Path, names: list[str]) -> None:
    T = rng(0).dirichlet(np.full(10, 20.0), 10)
    write_transition(T, names, tmp_path / "transition.csv")
    noise = parse_noise(f"matrix:{tmp_path / 'transition.csv'}")
    found = transition_of(noise, 10, names=names)
    np.testing.assert_allclose(found, T, rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-15)
    corrupt(np.arange(90) % 10, noise, 10, rng())


def test_a_matrix_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (tmp_path / "T.csv").write_bytes("\ufefftrue,cat,dog\r\ncat,0.8,0.2\r\ndog,0.1,0.9\r\n\r\n".encode())
    T = transition_of(parse_noise(f"matrix:{tmp_path / 'T.csv'}"), 2)
    np.testing.assert_allclose(T, [[0.8, 0.2], [0.1, 0.9]])


@pytest.mark.parametrize("names", [["cat", "dog", "emu"], ["emu", "cat", "dog"], None])
def test_named_classes_may_come_in_any_order(tmp_path: Path, names: list[str] | None) -> None:
    (tmp_path / "T.csv").write_text("true,emu,cat,dog\ndog,0.1,0.2,0.7\ncat,0.3,0.6,0.1\nemu,0.8,0.2,0\n")
    T = transition_of(parse_noise(f"matrix:{tmp_path / 'T.csv'}"), 3, names=names)
    expected = {("dog", "emu"): 0.1, ("dog", "dog"): 0.7, ("cat", "emu"): 0.3, ("emu", "cat"): 0.2, ("emu", "dog"): 0}
    if names is None:
        np.testing.assert_allclose(T, [[0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.8, 0.2, 0]])
    else:
        for (true, given), share in expected.items():
            assert T[names.index(true), names.index(given)] == pytest.approx(share)


def test_classes_may_be_numbered(tmp_path: Path) -> None:
    (tmp_path / "T.csv").write_text("true,1,0\n0,0.2,0.8\n1,0.9,0.1\n")
    T = transition_of(parse_noise(f"matrix:{tmp_path / 'T.csv'}"), 2, names=["cat", "dog"])
    np.testing.assert_allclose(T, [[0.8, 0.2], [0.1, 0.9]])


@pytest.mark.parametrize(
    ("head", "message"), [("cat,fox", "a class 'fox', which the data does not have"), ("cat,cat", "a class twice")]
)
def test_classes_of_other_data_are_refused(tmp_path: Path, head: str, message: str) -> None:
    (tmp_path / "T.csv").write_text(f"{head}\n0.8,0.2\n0.1,0.9\n")
    with pytest.raises(ValueError, match=message):
        transition_of(parse_noise(f"matrix:{tmp_path / 'T.csv'}"), 2, names=["cat", "dog"])


@pytest.mark.parametrize("name", ["T.csv", "T.npy", "T.npz"])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (MATRIX[:2], r"has shape \(2, 3\); with 3 classes it needs 3 rows"),
        (MATRIX * 0.9, "row 0 sums to 0.9, expected 1"),
        (MATRIX + np.outer([0, 1, 0], [-0.1, 0.1, 0]), "row 1 has a negative or non-finite entry"),
        (np.where(MATRIX == 0.5, np.nan, MATRIX), "row 0 has a negative or non-finite entry"),
    ],
)
def test_a_matrix_that_is_no_transition_is_refused(tmp_path: Path, name: str, matrix: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transition_of(parse_noise(write_matrix(tmp_path / name, matrix)), 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("T.csv", b"0.5,0.5\n1.0\n", "not a table of numbers"),
        ("T.csv", b"a,b\nc,d\n", "not a table of numbers"),
        ("T.csv", b"\xff\xfe\x00", "not a table of numbers"),
        ("T.csv", b"", r"has shape \(0,\)"),
        ("T.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("T.npz", b"PK\x03\x04 and no more", "cannot be read"),
        ("T.txt", b"1,0\n0,1\n", "is a .txt file; give a .csv, .npy or .npz file"),
    ],
)
def test_a_matrix_file_of_something_else_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        transition_of(parse_noise(f"matrix:{tmp_path / name}"), 2)


def test_a_matrix_file_of_objects_or_of_many_arrays_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "T.npy", np.array([[1, 0], [0, 1]], object), allow_pickle=True)
    np.savez(tmp_path / "T.npz", a=np.eye(2), b=np.eye(2))
    with pytest.raises(ValueError, match="cannot be read"):
        transition_of(parse_noise(f"matrix:{tmp_path / 'T.npy'}"), 2)
    with pytest.raises(ValueError, match="holds 2 arrays; save the matrix alone"):
        transition_of(parse_noise(f"matrix:{tmp_path / 'T.npz'}"), 2)


def test_a_missing_matrix_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no noise matrix at nowhere.csv"):
        transition_of(parse_noise("matrix:nowhere.csv"), 2)
