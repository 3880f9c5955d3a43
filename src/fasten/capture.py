"""Capture one update as a CUDA graph, and switch compiled networks off; the only file that knows of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fasten.loader import Picks

OneUpdate = Callable[[Mapping[str, Picks]], None]  # called with the rows picked for it

WARM_UPS = 4  # updates before the capture, in which libraries and compilers make all their choices


def capture(
    update: OneUpdate, example: Mapping[str, Picks], state: Sequence[Tensor], rewind: Callable[[], None]
) -> OneUpdate:
    """Return a function that does what `update` does by replaying a graph; for `state` and `rewind` see `warm_up`."""
    static = {name: _clone(picks) for name, picks in example.items()}
    inputs = [tensor for picks in static.values() for tensor in picks.tensors()]
    kinds = [tensor.dtype for tensor in inputs]
    alike = [[i for i, found in enumerate(kinds) if found == kind] for kind in dict.fromkeys(kinds)]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm_up(update, static, state, rewind)
    torch.cuda.current_stream().wait_stream(side)
    graph = record(update, static)

    def replay(picks: Mapping[str, Picks]) -> None:
        sources = [tensor for p in picks.values() for tensor in p.tensors()]
        assert len(sources) == len(inputs)
        for places in alike:  # one kernel per dtype; one copy per tensor would take longer
            torch._foreach_copy_([inputs[i] for i in places], [sources[i] for i in places])
        graph.replay()

    return replay


def record(update: OneUpdate, picks: Mapping[str, Picks]) -> torch.cuda.CUDAGraph:
    """Record an update, without doing it.

    If that fails, torch keeps its stream, its memory and its random numbers in the state of a capture, so the run ends.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads, such as a user's own, may use the GPU meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            update(picks)
    except RuntimeError as error:
        first = error.__context__ or error  # to end the recording then fails, too
        if isinstance(first, torch.OutOfMemoryError):
            raise first from None
        reason = (str(first).splitlines() or [type(first).__name__])[0]
        raise ValueError(
            f"the network cannot be captured as a CUDA graph ({reason}); on a GPU its forward may not wait for values, "
            "as `.item()`, `x[mask]` and `if x.max() > 1` do: use torch.where, or train on the CPU"
        ) from error
    return graph


def warm_up(update: OneUpdate, picks: Mapping[str, Picks], state: Sequence[Tensor], rewind: Callable[[], None]) -> None:
    """Run some updates and undo them. `state` lists every tensor that an update changes.

    `rewind` sets the position in the epoch back to its start. Otherwise, a run that resumes late in an epoch, or has
    short epochs, would write past the end of its histories.
    """
    saved = [tensor.detach().clone() for tensor in state]
    for _ in range(WARM_UPS):
        rewind()
        update(picks)
    with torch.no_grad():
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)


def uncompiled(method: nn.Module) -> AbstractContextManager[Any]:
    """Run a method's compiled networks without their compiled code.

    The switch is the process's: as other threads may turn it at the same time, it is left alone if nothing is compiled.
    """
    compiled = any(module._compiled_call_impl is not None for module in method.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _clone(picks: Picks) -> Picks:
    return replace(picks, **{n: t.clone() for n, t in vars(picks).items() if t is not None})
