"""Small builders that every test may use."""

from __future__ import annotations

import pandas as pd
import torch

from fasten.audit import judge, make_table
from fasten.data.synthetic import make_blobs
from fasten.data.task import Task
from fasten.datasets import Dataset, make_task
from fasten.machine import Machine
from fasten.records import Run

CPU64 = Machine(torch.device("cpu"), "float64")
CPU32 = Machine(torch.device("cpu"))


def label_table(ids, given, post, class_names, threshold: float = 0.5) -> pd.DataFrame:
    """What labels.csv holds, from the posterior of each row's true label."""
    judged = judge(post, given)
    return make_table(ids, given, judged, judged.p_wrong > threshold, class_names)


def make_tiny_task(noise: str = "symmetric:0.3", *, per_class: int = 30, num_classes: int = 3, seed: int = 0) -> Task:
    """Separable 6×6 images of three classes; 66 noisy, 9 clean, 6 validation and 9 test rows by default."""
    source = make_blobs(num_classes, per_class, size=6, seed=seed)
    recipe = Run("").recipe
    dataset = Dataset(
        lambda place: source, "", 3 * num_classes, 2 * num_classes, recipe, num_test=3 * num_classes, pad=1, flip=True
    )
    return make_task(dataset, source, noise, seed)
