"""The paper's tables and figures: a name for each, and what it consists of."""

from __future__ import annotations

from collections.abc import Callable

from fasten.experiments.cifar_n import cifar_n
from fasten.experiments.clean_size import clean_size
from fasten.experiments.clothing1m import clothing1m
from fasten.experiments.convergence import convergence
from fasten.experiments.correction import correction
from fasten.experiments.detection import detection
from fasten.experiments.glc_oracle import glc_oracle
from fasten.experiments.k import k_study
from fasten.experiments.lambda_ import lambda_study
from fasten.experiments.mloc import mloc
from fasten.experiments.oversampling import oversampling
from fasten.experiments.relabel import relabel
from fasten.experiments.robustness import robustness
from fasten.experiments.spec import Experiment, Setting
from fasten.experiments.t_diagonal import t_diagonal
from fasten.experiments.table1 import table1
from fasten.experiments.threshold import threshold
from fasten.experiments.time_accuracy import time_accuracy
from fasten.experiments.training_time import training_time

__all__ = ["EXPERIMENTS", "MINIATURE", "PAPER"]

DATA = ("cifar10", "cifar100", "cifar10n", "cifar100n", "clothing1m")
PAPER = Setting({name: name for name in DATA})
MINIATURE = Setting(dict.fromkeys(DATA, "digits"), epochs=3, few=True)  # an epoch for each stage of the longest plan

# In the paper's order.
EXPERIMENTS: dict[str, Callable[[Setting], Experiment]] = {
    "time-accuracy": time_accuracy,
    "table1": table1,
    "clothing1m": clothing1m,
    "training-time": training_time,
    "relabel": relabel,
    "robustness": robustness,
    "t-diagonal": t_diagonal,
    "convergence": convergence,
    "cifar-n": cifar_n,
    "correction": correction,
    "threshold": threshold,
    "oversampling": oversampling,
    "glc-oracle": glc_oracle,
    "mloc": mloc,
    "detection": detection,
    "clean-size": clean_size,
    "k": k_study,
    "lambda": lambda_study,
}
