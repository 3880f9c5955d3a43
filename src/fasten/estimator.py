"""FasTENClassifier: training, audit and prediction as a scikit-learn classifier.

Examples are rows of features, uint8 images (n, H, W, C) or image files; labels are texts or whole numbers. Training is
the same as in `fasten train`, on a task made from arrays instead of files.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fasten.data.arrays import new_examples, rows_from_arrays, table_on_host
from fasten.data.images import in_words, shape_of
from fasten.data.labels import Picked, check_alike, label_texts, note_blanks
from fasten.data.rows import Rows, note_only_verified
from fasten.data.targets import checked_labels, known_texts, make_classes, truths_as_given
from fasten.data.task import Task
from fasten.engine import predict
from fasten.evaluate import Evaluation, evaluate
from fasten.machine import Machine, choose_machine
from fasten.options import apply_settings, find_method, option_types, rate_of
from fasten.own import Own, auto_recipe, make_own_task
from fasten.records import Run, read_matrices, with_matrices, without_matrices
from fasten.runs.beginnings import check_plan
from fasten.runs.building import build_method, fill_networks, listen, make_fit, make_loader, seeded, weights_and_tables
from fasten.runs.checkpoint import read_tensors, write_tensors
from fasten.runs.divergence import Diverged, check_finite
from fasten.runs.inference import blank_task, trainable
from fasten.runs.notes import coverage_notes, length_notes
from fasten.runs.unseen import Unseen, judge_of

FORMAT = "fasten classifier 1"
DATA = "the data"  # their name in messages
NUMBERS = [np.dtype(kind) for kind in "dfebBhHiIlLqQ?"]  # not converted here, so that losses in float32 are noticed
LABEL_COLUMNS = ("given", "suggested", "corrected", "verified")
NO_CLEAN_ROWS = (
    "there are no verified rows to train on, so FasTENClassifier can only train on the labels as given, and judge them "
    "by networks that have not seen them; pass X_clean and y_clean, or y_verified with the labels that somebody checked"
)


@torch.inference_mode(False)
@torch.enable_grad()  # whatever the caller has set
def fit_task(
    run: Run, task: Task, machine: Machine, net: nn.Module | None = None
) -> tuple[nn.Module, Evaluation, list[str]]:
    """Train on a task without a folder; returns the method at its selected epoch, its evaluation, and notes.

    `net` replaces the network that the recipe names.
    """
    fit = make_fit(run, task, machine, net=net)
    check_plan(fit.method, fit.plan, task)
    listen(fit, run, task)

    def check(epoch_ended: bool) -> None:
        if not epoch_ended:
            return
        try:
            check_finite(fit, task)
        except Diverged as error:
            name, rate = rate_of(run.method, run.options, run.recipe)
            cure = f"give a smaller rate, such as rate={rate / 10:g}" if name == "rate" else "use another method"
            raise ValueError(f"{error}; {cure}") from None

    fit.after_update = check
    fit.run()
    notes: list[str] = [*task.notes, *length_notes(run.recipe, fit.plan), *coverage_notes(task, fit.plan)]
    judge = judge_of(fit, Unseen(run, task, machine, fit.progress, notes.append, net))
    min_precision = (run.own or {}).get("min_precision")
    found = evaluate(fit.method, task, fit.loader, min_precision, run.seed, judge=judge)
    return fit.method, found, [*notes, *found.findings.notes]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What prediction needs: the run, the network that it trained, and how examples look, as in a record's `data`."""

    run: Run
    method: nn.Module  # in evaluation mode for good: several threads may predict at once
    data: Mapping[str, Any]  # class_names, shape, mean, std


class FasTENClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for labels that you don't trust, with the help of a few that somebody checked.

    `net` is "auto" (an MLP for rows, a CNN that suits the size of images), a name as for `--set net=`, or your own
    module, which maps a batch to (n, features) and is copied. `weights` is a .safetensors file with the network's
    initial weights; `frozen` keeps them fixed and trains only the classifier on top. `method` is any of `fasten
    methods`. If `epochs`, `batch_size`, `rate` or `threshold` (the confidence at which FasTEN corrects a label) is
    None, it is chosen as by `fasten train`; methods in stages need more epochs than FasTEN's 30. `size` is the side, in
    pixels, to which image files are scaled. `min_precision` allows only corrections for which verified rows show that
    this share is right. The same `random_state` gives the same classifier, on a CPU to the bit.

    After `fit`: `classes_`; `transition_matrix_`, T[i, j] = P(given = j | true = i); `label_issues_`, a DataFrame with
    the columns of labels.csv, most suspect row first; `corrected_labels_`, the labels of X after repair; `evidence_`,
    what randomly verified rows show, as in record.json, or None; `notes_`, remarks on the training and the audit.

    >>> rng = np.random.default_rng(0)
    >>> truth = np.arange(300) % 2
    >>> X = rng.normal(size=(300, 2)) + 6 * truth[:, None]
    >>> y = np.where(rng.random(300) < 0.3, 1 - truth, truth)  # three in ten are wrong
    >>> clf = FasTENClassifier(epochs=10).fit(X, y, X_clean=[[0, 0], [6, 6]], y_clean=[0, 1])
    >>> bool(clf.score(X, truth) > 0.95), bool((clf.corrected_labels_ == truth).mean() > 0.95)
    (True, True)
    """

    def __init__(
        self,
        net: str | nn.Module = "auto",
        epochs: int | None = 30,
        device: str | torch.device = "auto",
        *,
        method: str = "fasten",
        batch_size: int | None = None,
        rate: float | None = None,
        threshold: float | None = None,
        weights: str | None = None,
        frozen: bool = False,
        size: int | None = None,
        min_precision: float | None = None,
        random_state: Any = 0,
    ) -> None:
        self.net, self.epochs, self.device, self.method = net, epochs, device, method
        self.batch_size, self.rate, self.threshold = batch_size, rate, threshold
        self.weights, self.frozen = weights, frozen
        self.size, self.min_precision, self.random_state = size, min_precision, random_state

    def fit(
        self,
        X: Any,
        y: Any,
        X_clean: Any = None,
        y_clean: Any = None,
        y_verified: Any = None,
        picked: Sequence[Picked | None] | None = None,
    ) -> FasTENClassifier:
        """Train on the labels `y` as given, with further rows whose labels are known, or verdicts on rows of X.

        `y_verified` has one entry for each row of X: the label that somebody checked, None or NaN if nobody did.
        `picked` says how that row was picked for checking, "random" (the default) or "chosen": only rows picked at
        random tell anything about the others.
        """
        if hasattr(self, "transition_matrix_"):  # of an earlier fit, which no longer counts even if this one fails
            del self.transition_matrix_
        machine = choose_machine(self.device)
        rows = self._rows(X, y, X_clean, y_clean, y_verified, picked)
        seed = _seed(self.random_state)
        task = make_own_task(rows, seed)
        run = self._run(task, machine, seed)
        with seeded(seed, "training"):
            method, found, self.notes_ = fit_task(run, task, machine, _module(self.net))
        data = {"class_names": task.class_names, "shape": task.shape, "mean": task.mean, "std": task.std}
        self._fitted = Fitted(run, method.eval(), data)
        table = found.findings.table(found.known, task.class_names, verdicts=True)
        self._keep(table, found.findings.transition, found.scores["evidence"])
        doubts = [(self.evidence_ or {}).get("doubt"), *found.findings.cautions]
        for sentence in dict.fromkeys(filter(None, doubts)):
            warnings.warn(sentence, UserWarning, stacklevel=2)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`."""
        check_is_fitted(self, "transition_matrix_")
        machine = choose_machine(self.device)
        method, loader = machine.place(self._fitted.method), make_loader(self._new_task(X), machine, 0)
        p = predict(method, loader, "test").cpu().double().numpy()
        return np.asarray(p / p.sum(1, keepdims=True))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted classifier into one file, atomically; `load` reads it and runs no code from it."""
        check_is_fitted(self, "transition_matrix_")
        if not Path(path).absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {Path(path).parent} for {Path(path).name}; make it first")
        table, matrices = BytesIO(), dict[str, NDArray[Any]]()
        named = _renamed(self.label_issues_, self.classes_.tolist(), self._fitted.data["class_names"])
        named.to_parquet(table, index=False)
        tensors = {f"method.{name}": tensor for name, tensor in weights_and_tables(self._fitted.method)[0].items()}
        tensors["label_issues"] = _bytes(table)
        tensors["transition_matrix"] = torch.from_numpy(self.transition_matrix_)
        described = self._described() | {"evidence": without_matrices(self.evidence_, "evidence", matrices)}
        if matrices:
            packed = BytesIO()
            np.savez_compressed(packed, **matrices)  # type: ignore[arg-type]  # no other argument has their names
            tensors["matrices"] = _bytes(packed)
        write_tensors(Path(path), tensors, json.dumps(described, default=_plain))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, net: nn.Module | None = None, device: str | torch.device = "auto"
    ) -> FasTENClassifier:
        """Read a saved classifier; if it was trained with your own module, give one like it as `net`."""
        tensors, meta = _read(Path(path))
        params = {**meta["params"], "device": device}
        if params["net"] is None:
            if net is None:
                raise ValueError(f"{path} was trained with a module of your own; give `load` one like it as net=")
            params["net"] = net
        self = cls(**params)
        self._restore(Path(path), tensors, meta)
        return self

    def _rows(self, X: Any, y: Any, X_clean: Any, y_clean: Any, y_verified: Any, picked: Any) -> Rows:
        """Check what `fit` was given; sets `classes_` and what scikit-learn remembers about X."""
        if (X_clean is None) != (y_clean is None):
            raise ValueError("X_clean and y_clean come together, but one of them is missing; give both")
        y = checked_labels(y, y_verified)
        if _is_table(X):
            x, y = validate_data(self, table_on_host(X), y, dtype=NUMBERS, ensure_min_samples=2)
        else:
            for name in vars(self).keys() & {"n_features_in_", "feature_names_in_"}:  # of an earlier fit
                delattr(self, name)
            x, y = X, validate_data(self, y=y)
        check_classification_targets(y)
        clean = None if X_clean is None else self._like_x(X_clean)
        texts = known_texts(y, "y")
        sure = None if y_clean is None else truths_as_given(texts, known_texts(y_clean, "y_clean"))
        verified = None if y_verified is None else truths_as_given(texts, label_texts(y_verified, "y_verified"))
        check_alike(DATA, texts, [*(sure or []), *(verified or [])])
        self.classes_ = make_classes(y, texts, sure, verified)
        rows = rows_from_arrays(
            x,
            texts,
            x_clean=clean,
            y_clean=sure,
            y_verified=verified,
            picked=picked,
            ids=_ids(X),
            how=Own(size=self.size, max_bad=0).decoding(),  # each row of X keeps its place
            class_names=[str(text) for text in known_texts(self.classes_, "y")],
            feature_names=list(getattr(self, "feature_names_in_", ())),
            name=DATA,
        )
        said = (*note_only_verified(DATA, rows), *note_blanks(DATA, texts))
        return replace(rows, notes=(*rows.notes, *said))

    def _like_x(self, X: Any) -> Any:
        """Further examples, checked like those of `fit` if they are rows of features."""
        if not hasattr(self, "n_features_in_"):
            return X
        return validate_data(self, table_on_host(X), dtype=NUMBERS, reset=False)

    def _new_task(self, X: Any) -> Task:
        data = self._fitted.data
        x = new_examples(self._like_x(X), Own(max_bad=0).decoding(data["shape"]), DATA)
        found = shape_of(x)
        if found != tuple(data["shape"]):
            raise ValueError(
                f"X has examples of {in_words(found)}, but the classifier was fitted to "
                f"{in_words(data['shape'])}; give examples of that shape"
            )
        task, rows = blank_task({"data": data}), np.arange(len(x))
        return replace(task, x=x, split=replace(task.split, test=rows), test=np.zeros_like(rows))

    def _run(self, task: Task, machine: Machine, seed: int) -> Run:
        """The run for the task; without clean rows, methods that need them fall back to cross-entropy."""
        names = ("epochs", "batch_size", "rate", "threshold", "weights", "frozen")
        asked, method = {name: getattr(self, name) for name in names}, self.method
        if find_method(method).clean_set and not len(task.clean):
            warnings.warn(NO_CLEAN_ROWS, UserWarning, stacklevel=3)
            method, asked["threshold"] = "cross-entropy", None
        if asked["threshold"] is not None and "threshold" not in option_types(find_method(method)):
            raise ValueError(f"{method} has no threshold, at which FasTEN corrects labels; leave it out")
        recipe = auto_recipe(task.shape, len(task.x), task.num_classes, machine.device.type)
        if self.net != "auto":
            recipe = replace(recipe, net=self.net if isinstance(self.net, str) else type(self.net).__name__)
        settings = [f"{name}={value}" for name, value in asked.items() if value is not None]
        options, recipe = apply_settings(method, recipe, settings)
        own = Own(size=self.size, min_precision=self.min_precision).to_json()
        return Run(task.name, method=method, options=options, recipe=recipe, seed=seed, own=own)

    def _keep(self, table: pd.DataFrame, T: NDArray[np.float64], evidence: dict[str, Any] | None) -> None:
        """Set the attributes that are there after `fit`, with labels of the type that came."""
        self.transition_matrix_, self.evidence_ = T, evidence
        self.label_issues_ = _renamed(table, self._fitted.data["class_names"], self.classes_.tolist())
        corrected = self.label_issues_.sort_values("row")["corrected"]
        self.corrected_labels_ = corrected.to_numpy(object).astype(self.classes_.dtype)

    def _described(self) -> dict[str, Any]:
        """Everything in a fitted classifier that is not a tensor, as plain values, except its evidence."""
        run, net = self._fitted.run, None if isinstance(self.net, nn.Module) else self.net
        params = self.get_params(deep=False) | {"net": net, "random_state": run.seed}
        return {
            "format": FORMAT,
            "params": params,
            "run": run.to_json(),
            "data": dict(self._fitted.data),
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "features": [int(getattr(self, "n_features_in_", 0)), list(getattr(self, "feature_names_in_", ()))],
            "notes": self.notes_,
        }

    def _restore(self, path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Set what `fit` had set before saving."""
        self.classes_ = np.array(meta["classes"], np.dtype(meta["dtype"]))
        num_features, names = meta["features"]
        if num_features:
            self.n_features_in_ = num_features
        if names:
            self.feature_names_in_ = np.array(names, object)
        run = Run.from_json(meta["run"])
        bare = replace(run, recipe=replace(run.recipe, weights=None))  # the saved ones follow
        method = build_method(bare, trainable(blank_task({"data": meta["data"]})), _module(self.net))
        weights = {name.removeprefix("method."): t for name, t in tensors.items() if name.startswith("method.")}
        try:
            fits = fill_networks(method, weights)
        except RuntimeError:  # other shapes
            fits = False
        if not fits:
            raise ValueError(
                f"{path} does not hold the weights of this network; give `load` the one it was trained with"
            )
        self._fitted = Fitted(run, method.eval(), meta["data"])
        self.notes_ = meta["notes"]
        table = pd.read_parquet(BytesIO(tensors["label_issues"].numpy().tobytes()))
        packed = BytesIO(tensors["matrices"].numpy().tobytes() if "matrices" in tensors else b"")
        evidence = with_matrices(meta["evidence"], "evidence", read_matrices(packed))
        self._keep(table, tensors["transition_matrix"].numpy(), evidence)


def _ids(X: Any) -> list[str] | None:
    """The names of a DataFrame's rows in its index, if they are distinct and not blank."""
    ids = [str(name) for name in X.index] if isinstance(X, pd.DataFrame) else []
    return ids if ids and all(map(str.strip, ids)) and len(set(ids)) == len(ids) else None


def _is_table(X: Any) -> bool:
    """Whether X is rows of features, or something that scikit-learn should refuse, not images or names of files."""
    shape = getattr(X, "shape", None)
    if shape is None or len(shape) == 1:
        first: Any = next(iter(X), None) if hasattr(X, "__iter__") else None
        return not isinstance(first, str | os.PathLike) and np.ndim(first) < 2
    return len(shape) not in (3, 4)


def _plain(value: Any) -> Any:
    """What JSON can hold instead of a NumPy number, a path or the like."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _bytes(file: BytesIO) -> Tensor:
    """A file in memory as a tensor."""
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _module(net: str | nn.Module) -> nn.Module | None:
    if not isinstance(net, str | nn.Module):
        raise ValueError(f"net takes a name or a module, got {net!r}; give a module itself, not its class: net=Net()")
    return net if isinstance(net, nn.Module) else None


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _renamed(table: pd.DataFrame, before: Sequence[Any], after: Sequence[Any]) -> pd.DataFrame:
    """A label table with other names for the classes; values that are not classes stay."""
    names = dict(zip(before, after, strict=True))
    columns = [name for name in LABEL_COLUMNS if name in table]
    return table.assign(**{name: [names.get(value, value) for value in table[name]] for name in columns})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors, meta = read_tensors(path)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; give one that FasTENClassifier.save wrote") from None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged or not a saved classifier ({error}); save it again") from None
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path} is not a {FORMAT}; give a file that FasTENClassifier.save wrote")
    return tensors, meta
