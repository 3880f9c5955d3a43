"""The names of the methods in papers."""

from __future__ import annotations

# As the paper writes them; the keys are their names on the command line and in the experiments.
NAMES = {
    "augdesc": "AugDesc",
    "causalnl": "CausalNL",
    "clean-only": "Clean-only",
    "cross-entropy": "Cross-entropy",
    "deep-knn": "Deep kNN",
    "dividemix": "DivideMix",
    "dividemix-clean": "DivideMix w/ clean rows",
    "fasten": "FasTEN",
    "fasten-no-lc": "FasTEN w/o LC",
    "fasten-oracle": "FasTEN w/ oracle w/o LC",
    "forward": "Forward",
    "glc": "GLC",
    "glc-oracle": "GLC w/ oracle",
    "if": "IF",
    "l2rw": "L2RW",
    "mlac": "MLaC",
    "mloc": "MLoC",
    "mslc": "MSLC",
    "mslc-no-lc": "MSLC w/o LC",
    "mw-net": "MW-Net",
    "naive-oversampling": "Naïve oversampling",
    "t-revision": "T-Revision",
    "volminnet": "VolMinNet",
}
META = "-meta"  # suffix of rows that judge a method's own weights or labels, not its classifier


def paper_name(row: str) -> str:
    """The name of a row or column as the paper writes it; a name that is not a method's is returned unchanged.

    >>> paper_name("mw-net"), paper_name("mlac-meta"), paper_name("K = 2")
    ('MW-Net', 'MLaC, meta', 'K = 2')
    """
    known = NAMES.get(row.removesuffix(META))
    return row if known is None else f"{known}, meta" if row.endswith(META) else known
