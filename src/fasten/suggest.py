"""Parts of messages: suggestions for an unknown name, lists of names, and other people's messages on one line."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

MANY = 10_000  # names that are searched for the nearest


def nearest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """What to say after "unknown …;": the nearest known names; if none is near, `otherwise`, or the first known names.

    >>> nearest("fastn", ["fasten", "glc"])
    "did you mean 'fasten'?"
    >>> nearest("zzz", ["fasten", "glc"])
    'known: fasten, glc'
    >>> nearest("GLC ", ["glc", "glcs"])
    "did you mean 'glc'?"
    >>> nearest("cafe\\u0301", ["caf\\xe9"])
    "did you mean 'caf\\\\xe9', in another Unicode form?"
    """
    names = list(known)
    plain = {_plain(other): other for other in reversed(names[:MANY])}
    close = [_plain(name)] if _plain(name) in plain else difflib.get_close_matches(_plain(name), plain, 2, 0.6)
    if close:
        return "did you mean " + " or ".join(_shown(plain[c], name) for c in close) + "?"
    return otherwise or f"known: {listed(names, 30)}"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names for a sentence, at most `most` of them.

    >>> listed(["cat", "dog", "fox"], 2)
    'cat, dog and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def one_line(text: object, most: int | None = None) -> str:
    """The same words without line breaks, cut to at most `most` characters.

    >>> one_line(ValueError("no\\n such  file"), 7)
    'no such'
    """
    return " ".join(str(text).split())[:most]


def _shown(meant: str, name: str) -> str:
    """A suggested name; in escapes if it looks the same as the unknown one."""
    alike = meant != name and unicodedata.normalize("NFC", meant) == unicodedata.normalize("NFC", name)
    return f"{meant!a}, in another Unicode form" if alike else repr(meant)


def _plain(name: str) -> str:
    """The name without what people overlook: case, blanks around it, and the Unicode form."""
    return unicodedata.normalize("NFC", name).casefold().strip()
