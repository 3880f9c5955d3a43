"""Compare T̂ of the clean rows, as in the paper, with T̂ of the noisy rows on users' own data.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/estimate.py

The record has accuracy, wrong labels found, and labels that are right after correction, on the problems of
benchmarks/noisy_weight.py. How fast the running mean moves and where it starts were set on digits and on seeds 5 and 6
of these problems, where nearly any value would have done; the seeds recorded here played no part in that choice.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from averaging import compare

from fasten.files import write_text
from fasten.records import environment

ESTIMATES = ("clean", "noisy")
SEEDS = range(9, 14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/estimate.json"))
    asked = parser.parse_args()
    ways = {estimate: ("--set", f"estimate={estimate}") for estimate in ESTIMATES}
    means = compare(ways, SEEDS, ("symmetric:0.4", "symmetric:0.8"))
    result = {"environment": environment(), "seeds": list(SEEDS), "problems": means}
    write_text(asked.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
