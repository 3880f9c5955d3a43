"""The problems of `golden/<method>-authors.json`: their weights and images, and a loader that serves their batches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fasten.contract import Examples, Stage
from fasten.update import Update

GOLDEN = Path(__file__).parent / "golden"


def numbers_of(method: str) -> dict:
    return json.loads((GOLDEN / f"{method}-authors.json").read_text())


class SmallNet(nn.Module):
    """The feature extractor that most of these files were made with; their `linear` is our head."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x))).mean((2, 3))


def draw_weights(rng: np.random.RandomState, parameters: list) -> dict[str, torch.Tensor]:
    """As the files' `draws` say."""
    found = {}
    for name, shape in parameters:
        value = rng.standard_normal(shape)
        if len(shape) > 1:
            value *= math.sqrt(2 / math.prod(shape[1:]))
        else:
            value = 1 + 0.1 * value if name.endswith("weight") else 0.1 * value
        found[name] = torch.from_numpy(value)
    return found


def our_name(name: str) -> str:
    """`bn1.weight` -> `backbone.bn1.weight`, `linear.bias` -> `clean.bias`."""
    return name.replace("linear.", "clean.") if name.startswith("linear.") else f"backbone.{name}"


def load_weights(net: nn.Module, weights: dict[str, torch.Tensor], rename=our_name) -> None:
    missing, unexpected = net.load_state_dict({rename(n): w for n, w in weights.items()}, strict=False)
    assert not unexpected
    assert not [name for name in missing if "running" not in name and "num_batches" not in name], missing


def draw_checked(rng: np.random.RandomState, shape: tuple[int, ...], check: dict) -> torch.Tensor:
    """Images, seen to be those that the file was made with."""
    images = rng.standard_normal(shape)
    np.testing.assert_allclose(images.flatten()[:3], check["first"], rtol=1e-12)
    np.testing.assert_allclose(images.sum(), check["sum"], rtol=1e-9)
    return torch.from_numpy(images)


def examples(x: torch.Tensor, y, index: torch.Tensor | None = None) -> Examples:
    size = len(x)
    index = torch.arange(size) if index is None else index
    ones = torch.ones(size, dtype=torch.float64)
    return Examples(x, torch.as_tensor(y), index, ones, torch.zeros(size, 2, dtype=torch.float64))


class Served:
    """Serves prepared draws in order, in place of a Loader."""

    dtype = torch.float64

    def __init__(self, draws: list[dict[str, Examples]], *, per_epoch: int | None = None) -> None:
        self.waiting, self.per_epoch = list(draws), per_epoch or len(draws)

    def num_updates(self, stage: Stage) -> int:
        return self.per_epoch

    most_updates = num_updates

    def draws(self, stage: Stage, picks) -> dict[str, Examples]:
        return self.waiting.pop(0)


def updates(update: Update, places: list[tuple[int, int]]):
    """Do an update at each (epoch, update) of a stage; yields its loss, and lets the caller look around."""
    for place in places:
        update.clear()
        update.set_rates(*place)
        update({})
        yield update.loss.item()


def assert_state(net: nn.Module, expected: dict, rename=our_name, rtol: float = 1e-9) -> None:
    """Weights and running statistics; large arrays are kept as their first values and sums."""
    ours = net.state_dict()
    for name, values in expected.items():
        found = ours[rename(name)].double()
        if isinstance(values, dict):
            np.testing.assert_allclose(found.flatten()[:12], values["first"], rtol=rtol, atol=rtol, err_msg=name)
            np.testing.assert_allclose(found.abs().sum(), values["abs_sum"], rtol=rtol, err_msg=name)
        else:
            np.testing.assert_allclose(found, np.array(values), rtol=rtol, atol=rtol, err_msg=name)


def weight_sum(net: nn.Module) -> float:
    return sum(parameter.sum().item() for parameter in net.parameters())
