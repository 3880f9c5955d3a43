"""Users' own data by FasTEN and by methods that need no verified rows: accuracy, wrong labels found, time.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/which_method.py

The problems of benchmarks/noisy_weight.py, each method as it is by itself; verified rows choose the epoch and calibrate
p_wrong for all of them alike, and train FasTEN alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from averaging import compare

from fasten.files import write_text
from fasten.records import environment

METHODS = ("fasten", "volminnet", "dividemix")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="5,6,7")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/which_method.json"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    ways = {method: ("--method", method) for method in asked.methods.split(",")}
    means = compare(ways, seeds, ("symmetric:0.4", "symmetric:0.8"))
    write_text(
        asked.out, json.dumps({"environment": environment(), "seeds": seeds, "problems": means}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
