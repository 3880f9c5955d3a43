"""A plausible record.json, schema 1, for tests of what reads it: FasTEN on a small data set, any size."""

from __future__ import annotations

from typing import Any

import numpy as np


def example_record(num_classes: int = 10, num_epochs: int = 60, *, noise: float = 0.4, seed: int = 0) -> dict[str, Any]:
    """All fields known; the curves rise, T comes near the truth, and the noisy rows help."""
    rng = np.random.default_rng(seed)
    best = max(1, num_epochs - 5)
    true = np.full((num_classes, num_classes), noise / num_classes) + (1 - noise) * np.eye(num_classes)
    epochs = [_epoch(k, num_epochs, float(true[0, 0]), rng) for k in range(1, num_epochs + 1)]
    epochs[best - 1].update(valid_accuracy=0.97, test_accuracy=0.963)
    return {
        "schema": 1,
        "run": _run(num_epochs, noise, seed),
        "environment": {
            "fasten": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "device": "cpu",
            "precision": "float32",
            "commit": None,
            "platform": "Linux-6.1-x86_64",
        },
        "data": {
            "rows_noisy": 1197,
            "rows_clean": 100,
            "rows_valid": 100,
            "rows_test": 400,
            "num_classes": num_classes,
            "noise_rate": noise * (1 - 1 / num_classes),
            "class_names": [str(i) for i in range(num_classes)],
        },
        "epochs": epochs,
        "evaluation": {
            "test_nll": 0.1874,
            "relabel": {"accuracy": 0.9532, "nll": 0.2019, "accuracy_wrong": 0.9417, "nll_wrong": 0.3084},
            "detection": {
                "minus_p_given": {"auroc": 0.9813, "auprc": 0.9722},
                "posterior": {"auroc": 0.9846, "auprc": 0.9751},
            },
            "transition": {
                "given": _shaken(true, 400, rng),
                "true": true.tolist(),
                "estimated": _shaken(0.3 * true + 0.7 * np.eye(num_classes), 200, rng),
                "chi2": 0.0132,
                "off_support": 0.0,
                "largest_error": 0.0317,
            },
        },
        "references": {
            "clean_only": {"test_accuracy": 0.901, "valid_accuracy": 0.91, "updates": 720, "seconds": 3.2},
            "noisy_only": {"test_accuracy": 0.7225, "valid_accuracy": 0.73, "updates": 720, "seconds": 3.4},
        },
        "result": {
            "test_accuracy": 0.963,
            "test_accuracy_last": epochs[-1]["test_accuracy"],
            "best_epoch": best,
            "valid_accuracy": 0.97,
            "selected_by": "valid",
            "train_seconds": 9.8,
            "setup_seconds": 0.7,
            "examples_per_second": 12345.0,
            "peak_memory_bytes": None,
        },
        "notes": [],
    }


def _run(num_epochs: int, noise: float, seed: int) -> dict[str, Any]:
    return {
        "dataset": "digits",
        "noise": f"symmetric:{noise:g}",
        "method": "fasten",
        "options": {"threshold": 0.8, "noisy_weight": 0.5},
        "recipe": {
            "net": "small-cnn",
            "epochs": num_epochs,
            "batch_size": 100,
            "rate": 0.05,
            "momentum": 0.9,
            "weight_decay": 0.0005,
            "milestones": [43, 52],
        },
        "seed": seed,
    }


def _epoch(k: int, num_epochs: int, diagonal: float, rng: np.random.Generator) -> dict[str, Any]:
    gone = k / num_epochs
    rise = 1 - np.exp(-6 * gone)
    corrected = 0.33 * rise
    values = {
        "loss": 3.1 * np.exp(-3 * gone) + 0.4,
        "valid_accuracy": 0.3 + 0.67 * rise - 0.02 * rng.random(),
        "test_accuracy": 0.3 + 0.66 * rise - 0.01 * rng.random(),
        "corrected_fraction": corrected,
        "label_accuracy": diagonal + (0.97 - diagonal) * rise,
        "t_diagonal": 0.1 + 0.85 * rise,
        "t_diagonal_true": diagonal + (0.97 - diagonal) * rise,
        "learning_rate": 0.05 * 0.1 ** ((gone > 0.7) + (gone > 0.86)),
        "seconds": 0.16,
        "off_support": 0.0,
    }
    chi2 = [round(float(v), 5) for v in 0.02 + 0.9 * np.exp(-7 * gone) * (1 + 0.3 * rng.random(4))]
    return {"epoch": k, "stage": "train", **{key: round(float(v), 5) for key, v in values.items()}, "chi2": chi2}


def _shaken(T: np.ndarray, strength: float, rng: np.random.Generator) -> list[list[float]]:
    """T as estimated: rows around those of T, closer the greater the strength."""
    rows = [rng.dirichlet(strength * row + 0.05) for row in T]
    return [[float(v) for v in row] for row in np.round(rows, 4)]
