"""Plain values that the command line shows before it imports anything that takes time."""

from __future__ import annotations

VERSION = "0.1.0"
MAX_BAD = 10  # images that may be unreadable
COMPARED = "fasten,fasten-no-lc,naive-oversampling,cross-entropy,clean-only"  # unless others are named
# What people look for among the options, or call otherwise: fields of the recipe, which --set takes.
SETTINGS = {name: name for name in ("net", "batch_size", "rate", "momentum", "weight_decay", "milestones", "weights")}
SETTINGS |= {"lr": "rate", "learning_rate": "rate", "batch": "batch_size", "wd": "weight_decay", "model": "net"}
