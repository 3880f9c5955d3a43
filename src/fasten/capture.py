"""One update captured as a CUDA graph; the only file that knows of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fasten.loader import Picks

Update = Callable[[Mapping[str, Picks]], None]

WARM_UPS = 4  # updates run before the capture, so that libraries and compilers have made all their choices


def capture(update: Update, example: Mapping[str, Picks], state: Sequence[Tensor]) -> Update:
    """A function that does what `update` does, by replaying a graph.

    `state` lists every tensor that an update changes: the warm-up's traces on them are undone.
    """
    static = {name: _clone(picks) for name, picks in example.items()}
    inputs = [tensor for picks in static.values() for tensor in picks.tensors()]
    saved = [tensor.detach().clone() for tensor in state]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            update(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update(static)
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)

    def replay(picks: Mapping[str, Picks]) -> None:
        for target, source in zip(inputs, (t for p in picks.values() for t in p.tensors()), strict=True):
            target.copy_(source, non_blocking=True)
        graph.replay()

    return replay


def _clone(picks: Picks) -> Picks:
    return replace(picks, **{n: t.clone() for n, t in vars(picks).items() if t is not None})
