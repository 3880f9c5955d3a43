"""Plain values that the command line shows before it imports anything that takes time."""

from __future__ import annotations

VERSION = "0.1.0"
MAX_BAD = 10  # images that may be unreadable
COMPARED = "fasten,fasten-no-lc,naive-oversampling,cross-entropy,clean-only"  # unless others are named
