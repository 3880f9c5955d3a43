"""Plain values that the command line shows before it imports anything slow."""

from __future__ import annotations

VERSION = "0.1.0"
MAX_BAD = 10  # unreadable images that are tolerated by default
COMPARED = "fasten,fasten-no-lc,naive-oversampling,cross-entropy,clean-only"  # unless others are named
# Fields of the recipe, set by --set, that people look for among the options, also under other names.
SETTINGS = {name: name for name in ("net", "batch_size", "rate", "momentum", "weight_decay", "milestones", "weights")}
SETTINGS |= {"lr": "rate", "learning_rate": "rate", "batch": "batch_size", "wd": "weight_decay", "model": "net"}
