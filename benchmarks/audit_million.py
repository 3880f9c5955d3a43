"""Measure time and memory of auditing a million rows with stored probabilities: audit, labels.csv and report.

`python benchmarks/audit_million.py --out benchmarks/audit_million.json`. Each step runs in its own process, so that its
peak memory (which includes the imports) is that of this step alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fasten.audit.reviews import next_rows
from fasten.audit.stored import audit_probabilities, choose_threshold, read_audit, summarise

VERIFIED = 3000


def make(folder: Path, rows: int, classes: int) -> None:
    """Write probabilities of an imperfect model, and given labels of which a third is drawn at random."""
    rng = np.random.default_rng(0)
    truth = rng.integers(classes, size=rows)
    given = np.where(rng.random(rows) < 1 / 3, rng.integers(classes, size=rows), truth)
    probs = np.empty((rows, classes), np.float32)
    for start in range(0, rows, 50_000):
        part = slice(start, start + 50_000)
        scores = rng.standard_normal((len(truth[part]), classes)).astype(np.float32)
        scores[np.arange(len(scores)), truth[part]] += 5
        scores = np.exp(scores)
        probs[part] = scores / scores.sum(1, keepdims=True)
    verified = np.full(rows, -1)
    looked = rng.choice(rows, VERIFIED, replace=False)
    verified[looked] = truth[looked]
    np.savez(folder / "made.npz", given=given, verified=verified)
    np.save(folder / "probs.npy", probs)


def work(step: str, folder: Path) -> dict[str, float]:
    """Run one step and return its seconds and peak memory."""
    probs = np.load(folder / "probs.npy", mmap_mode="r")
    with np.load(folder / "made.npz") as made:
        given, verified = made["given"], made["verified"]
    names = [f"class {number}" for number in range(probs.shape[1])]
    began = time.perf_counter()
    if step == "audit":
        ids = [f"images/{number // 1000:04d}/{number:07d}.jpg" for number in range(len(probs))]
        audit_probabilities(probs, given, names, ids=ids, verified=verified, out=folder / "run", min_precision=0.95)
    elif step == "read":
        summarise(read_audit(folder / "run"))
    elif step == "threshold":
        choose_threshold(read_audit(folder / "run"), 0.9)
    else:
        next_rows(read_audit(folder / "run"), 500)
    seconds = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "seconds": round(seconds, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(work(given.step[0], Path(given.step[1]))))
        return
    lines = []
    for classes in given.classes:
        with tempfile.TemporaryDirectory() as place:
            make(Path(place), given.rows, classes)
            line: dict[str, object] = {"rows": given.rows, "classes": classes, "verified": VERIFIED}
            for step in ("audit", "read", "threshold", "next"):
                done = subprocess.run([sys.executable, __file__, "--step", step, place], capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr)
                line[step] = json.loads(done.stdout)
            for name in ("report.html", "labels.csv", "gallery.json"):
                line[name] = f"{os.path.getsize(Path(place) / 'run' / name) / 1e6:.1f} MB"
            lines.append(line)
            print(json.dumps(line))
    if given.out:
        machine = {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()}
        given.out.write_text(json.dumps({"machine": machine, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
