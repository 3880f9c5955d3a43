"""Parts of messages: answers to a name that nobody knows, and what others say, on one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after "unknown …;": the nearest known names, or all of them.

    >>> nearest("fastn", ["fasten", "glc"])
    "did you mean 'fasten'?"
    >>> nearest("zzz", ["fasten", "glc"])
    'known: fasten, glc'
    >>> nearest("GLC ", ["fasten", "glc"])
    "did you mean 'glc'?"
    """
    names = list(known)
    plain = {_plain(other): other for other in reversed(names)}
    close = difflib.get_close_matches(_plain(name), plain, n=2, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(plain[c]) for c in close) + "?"
    return "known: " + ", ".join(names)


def one_line(text: object, most: int | None = None) -> str:
    """The same words without line breaks, and no more than so many characters.

    >>> one_line(ValueError("no\\n such  file"), 7)
    'no such'
    """
    return " ".join(str(text).split())[:most]


def _plain(name: str) -> str:
    """Without what people overlook: case, and blanks around it."""
    return name.casefold().strip()
