"""Export a run's classifier as one file for other programs: ONNX, or an exported program of torch.

It takes examples as the readers give them, raw pixels or features, and returns class probabilities; it includes
normalisation. Before the file is written, it is loaded from memory and its predictions are compared with our own.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import ExportedProgram as Program

from fasten.augment import Normalise, centre_crop
from fasten.data.task import Task
from fasten.files import write_bytes
from fasten.nets import Heads
from fasten.runs.inference import blank_task, load_method, read_finished
from fasten.suggest import nearest, one_line

Predict = Callable[[NDArray[Any]], NDArray[Any]]

TOLERANCE = 1e-4  # of a probability: kernels may add up in another order, and nothing else may differ
ROWS = 64  # to compare
BATCHES = (1, 2, 5)  # sizes of the batches to compare with; the rest of the rows form one more
CPU = torch.device("cpu")
ENDINGS = {"onnx": ".onnx", "torch": ".pt2"}


class Classifier(nn.Module):
    """Maps raw examples, (B, H, W, C) uint8 images or (B, D) float32 features, to class probabilities (B, N).

    With several networks (DivideMix has two), the probabilities are those of their mean logits.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, networks: list[Heads], task: Task) -> None:
        super().__init__()
        plain = Normalise(task.mean, task.std, task.x.ndim == 4, CPU, torch.float32)
        self.register_buffer("scale", plain.scale)
        self.register_buffer("shift", plain.shift)
        self.image = plain.image
        # Without what surrounds a forward pass in training.
        self.networks = nn.ModuleList(nn.Sequential(net.backbone, net.get_submodule("clean")) for net in networks)

    def forward(self, examples: Tensor) -> Tensor:
        x = examples.float() * self.scale + self.shift
        x = x.permute(0, 3, 1, 2) if self.image else x
        logits = [network(x) for network in self.networks]
        return torch.softmax(torch.stack(logits).mean(0) if len(logits) > 1 else logits[0], 1)


def export_run(folder: Path, out: Path, form: str, examples: NDArray[Any] | None = None) -> dict[str, Any]:
    """Write a finished run's classifier, and return how far its predictions are from ours; if too far, write nothing.

    `examples` are those to compare on, as the readers give them; by default they are made up.
    """
    if form not in FORMATS:
        raise ValueError(f"unknown format {form!r}; {nearest(form, FORMATS)}")
    if out.suffix.lower() != ENDINGS[form]:
        raise ValueError(f"--out {out} must end in {ENDINGS[form]} for --format {form}")
    task = blank_task(read_finished(folder))
    method = load_method(folder, task).eval()
    networks = [child for child in method.children() if isinstance(child, Heads)]
    assert networks, "every method has its classifier among its children"
    if examples is None:
        examples = made_up(task)
    names = json.dumps(list(task.class_names))
    content, predict = _exported(form, Classifier(networks, task).eval(), examples, names)
    difference = _largest_difference(predict, _ours(method, task), examples)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the exported model is off by {difference:.2g} in a probability, and rounding explains {TOLERANCE:g} at "
            f"most; it was not written; try --format {'torch' if form == 'onnx' else 'onnx'}"
        )
    write_bytes(out, content)
    return {
        "out": os.fspath(out),
        "format": form,
        "bytes": len(content),
        "input": ["batch", *examples.shape[1:]],
        "input_type": examples.dtype.name,
        "classes": list(task.class_names),
        "rows_compared": len(examples),
        "largest_difference": difference,
    }


def first_examples(task: Task) -> NDArray[Any]:
    """Some of a task's test rows, to compare on."""
    x = torch.from_numpy(np.asarray(task.x[task.split.test[:ROWS]]))
    return np.asarray(centre_crop(x, task.crop).contiguous().numpy())


def made_up(task: Task) -> NDArray[Any]:
    """Examples to compare on: noise and coarse patterns, or features around the mean."""
    rng = np.random.default_rng(0)
    if len(task.shape) == 1:
        drawn = rng.normal(task.mean, task.std, (ROWS, *task.shape))
        return np.asarray(drawn, np.float32)
    channels, height, width = task.shape
    noise = rng.integers(0, 256, (ROWS // 2, height, width, channels), np.uint8)
    coarse = rng.integers(0, 256, (ROWS - ROWS // 2, 4, 4, channels), np.uint8)
    ys, xs = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return np.concatenate([noise, coarse[:, ys][:, :, xs]])


def _ours(method: nn.Module, task: Task) -> Predict:
    """Predictions as `fasten predict` makes them on a CPU."""
    normalise = Normalise(task.mean, task.std, task.x.ndim == 4, CPU, torch.float32)

    def predict(examples: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            return np.asarray(method(normalise(torch.from_numpy(examples))).numpy())

    return predict


def _largest_difference(theirs: Predict, ours: Predict, examples: NDArray[Any]) -> float:
    """The largest difference of a probability; the exported model gets the examples in batches of several sizes."""
    found = [theirs(part) for part in np.split(examples, np.cumsum(BATCHES)) if len(part)]
    return float(np.abs(np.concatenate(found) - ours(examples)).max())


def _exported(form: str, model: Classifier, like: NDArray[Any], names: str) -> tuple[bytes, Predict]:
    """The content of the file, and a function that predicts with it."""
    try:
        return FORMATS[form](_traced(model, like), names)
    except ValueError:
        raise
    except Exception as error:  # whatever the libraries raise on a network that they cannot trace
        reason = one_line(error, 300)
        raise ValueError(f"torch cannot export this network as {form} ({reason}); use another format") from error


def _to_torch(program: Program, names: str) -> tuple[bytes, Predict]:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"classes.json": names})
    loaded = torch.export.load(io.BytesIO(file.getvalue())).module()  # safe: we have just written it ourselves

    def predict(x: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            return np.asarray(loaded(torch.from_numpy(x)).numpy())

    return file.getvalue(), predict


def _to_onnx(program: Program, names: str) -> tuple[bytes, Predict]:
    runtime = _needed("onnxruntime")
    _needed("onnxscript")
    with _quiet():
        made = torch.onnx.export(
            program, dynamo=True, input_names=["examples"], output_names=["probabilities"], verbose=False
        )
    assert made is not None
    made.model.metadata_props["classes"] = names
    content: bytes = made.model_proto.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda x: np.asarray(session.run(["probabilities"], {"examples": x})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' warnings about each other, such as one about torchvision, which nothing here needs."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


FORMATS: dict[str, Callable[[Program, str], tuple[bytes, Predict]]] = {"onnx": _to_onnx, "torch": _to_torch}


def _traced(model: Classifier, like: NDArray[Any]) -> Program:
    """The program, for any number of examples. It is traced on blank ones, since the file keeps them."""
    blank = torch.from_numpy(np.zeros_like(like, shape=(2, *like.shape[1:])))
    with torch.no_grad():
        return torch.export.export(model, (blank,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def _needed(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ValueError(
            f"ONNX needs the library {library}; install it (pip install onnx onnxscript onnxruntime), or use --format "
            "torch"
        ) from None
