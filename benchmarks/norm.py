"""Time one batch norm with its residual sum and ReLU, forward and backward: `python benchmarks/norm.py`.

Two parts of 100 images each, bfloat16, channels last, at the layer sizes of a ResNet-34 on 32×32 images. `torch` splits
the batch, normalises each part, joins the parts, adds the residual and applies ReLU; `fused` is
`fasten.nets.fused_norm`; `copy` moves as many bytes as `fused` reads and writes. Each is a replayed graph over so many
inputs that none is in the cache. Times are medians per call, in microseconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fasten.kernels import AVAILABLE
from fasten.nets import fused_norm
from fasten.nets.fused_norm import norm_act

PARTS = (100, 100)
LAYERS = [(64, 32), (128, 16), (256, 8), (512, 4)]  # channels, height and width
MOMENTUM, EPS = 0.1, 1e-5
COLD_BYTES = 512 * 2**20  # several times the cache of an H200
PASSES = {False: 8, True: 11}  # reads and writes of whole tensors by `fused`, without and with a residual


@dataclass
class Case:
    """The tensors of one call."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    residual: Tensor | None
    dy: Tensor


def make_case(channels: int, size: int, residual: bool) -> Case:
    def image() -> Tensor:
        x = torch.randn(sum(PARTS), channels, size, size, device="cuda", dtype=torch.bfloat16)
        return x.contiguous(memory_format=torch.channels_last)

    weight, bias = torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")
    mean, var = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
    x, extra = image().requires_grad_(), image().requires_grad_() if residual else None
    return Case(x, weight.requires_grad_(), bias.requires_grad_(), mean, var, extra, image())


def by_torch(case: Case) -> Tensor:
    parts = torch.split(case.x, list(PARTS))
    y = torch.cat([F.batch_norm(p, case.mean, case.var, case.weight, case.bias, True, MOMENTUM, EPS) for p in parts])
    return F.relu(y if case.residual is None else y + case.residual)


def by_kernels(case: Case) -> Tensor:
    norm = (case.x, case.weight, case.bias, case.mean, case.var)
    return norm_act(*norm, PARTS, MOMENTUM, EPS, residual=case.residual, relu=True)[0]


def there_and_back(forward: Callable[[Case], Tensor], case: Case) -> None:
    leaves = [t for t in (case.x, case.weight, case.bias, case.residual) if t is not None]
    torch.autograd.grad(forward(case), leaves, case.dy)


def microseconds(calls: Sequence[Callable[[], object]], rounds: int) -> float:
    """Median time per call over replays of one graph of all calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(rounds + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / len(calls))
    return statistics.median(times[3:])


def line(channels: int, size: int, residual: bool, rounds: int) -> str:
    first = make_case(channels, size, residual)
    bytes_per_tensor = first.x.numel() * first.x.element_size()
    count = max(4, -(-COLD_BYTES // (bytes_per_tensor * (3 if residual else 2))))
    cases = [first, *(make_case(channels, size, residual) for _ in range(count - 1))]
    plain = microseconds([partial(there_and_back, by_torch, case) for case in cases], rounds)
    fused = microseconds([partial(there_and_back, by_kernels, case) for case in cases], rounds)
    forward = microseconds([partial(by_kernels, case) for case in cases], rounds)
    moved = PASSES[residual] * bytes_per_tensor
    pairs = torch.empty(max(2, -(-COLD_BYTES // moved)), 2, moved // 2, dtype=torch.uint8, device="cuda").random_()
    copy = microseconds([partial(target.copy_, source) for source, target in pairs], rounds)
    kind = "add, relu" if residual else "relu"
    numbers = f"{plain:9.1f} {fused:9.1f} {forward:9.1f} {copy:9.1f} {plain / fused:9.2f} {fused / copy:9.2f}"
    return f"{channels:4d} × {size:2d} × {size:2d}  {kind:10s}{numbers}"


NAMES = ("programs", "warps", "stages", "few_tiles", "few_warps", "few_stages")  # of fused_norm, in lower case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    for name in NAMES:
        parser.add_argument(f"--{name}", type=int, default=getattr(fused_norm, name.upper()))
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() and AVAILABLE):
        parser.error("needs a CUDA device and Triton")
    for name in NAMES:
        setattr(fused_norm, name.upper(), getattr(arguments, name))
    torch.manual_seed(0)
    heads = ("torch", "fused", "(forward)", "copy", "speed-up", "× copy")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds per call")
    print(f"{'':26s}" + " ".join(f"{head:>9s}" for head in heads))
    for channels, size in LAYERS:
        for residual in (False, True):
            print(line(channels, size, residual, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
