"""One run on several processes, the ranks that torchrun starts: how they share work and add up results.

Every rank draws the whole batch and takes its share of it; all sums over rows are also sums over ranks. So after each
update all ranks have the same state, and only the first one writes. With a single process, everything here is the
identity. Other process groups are left alone: ranks only count inside `joined()`.
"""

from __future__ import annotations

import atexit
import importlib
import math
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fasten.torchrun import is_one_of_several, told

LEAST = 2  # rows of a share: batch norm needs more than one

_joined = False


@contextmanager
def joined() -> Iterator[None]:
    """Work as one of the ranks that the environment describes, if there are several."""
    global _joined
    if not is_one_of_several():
        yield
        return
    # If it were imported later, by an optimiser for example, torch's compiler would never let go of the group: its
    # threads would outlive the interpreter, and sometimes abort a run that had ended well.
    importlib.import_module("torch._dynamo")
    try:
        store, number, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=_own_part(store, number, count), rank=number, world_size=count)
        _joined = True
        try:
            yield
        except BaseException:
            if not torch.cuda.is_available():  # NCCL would wait for ranks that may be gone
                atexit.register(dist.destroy_process_group)  # at exit: torchrun might end this rank before it says why
            raise
        dist.destroy_process_group()
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise ConnectionError(
            f"rank {os.environ.get('RANK')} has lost the others ({str(error).split('. ')[0]}); once what ended them is "
            "mended, `fasten resume` under torchrun continues the run; with --max-restarts torchrun does so itself"
        ) from error
    finally:
        _joined = False


def _own_part(store: Any, number: int, count: int) -> Any:
    """A part of torchrun's store for these processes alone.

    The store outlives them (torch 2.13), and restarted ranks would wait forever for dead ones that it still lists. So
    the first rank makes up a name, and tells it to each other rank under a key that only that rank's process knows.
    """
    mine = uuid.uuid4().hex
    if number > 0:
        store.set(f"fasten/{number}", mine)
        name = store.get(f"fasten/{mine}").decode()
        store.add(f"fasten/{name}", 1)
    else:
        name = mine
        while store.add(f"fasten/{name}", 0) < count - 1:
            for other in range(1, count):  # perhaps a dead one's key, until a living rank has overwritten it
                store.set(f"fasten/{store.get(f'fasten/{other}').decode()}", name)
            time.sleep(0.02)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def world() -> int:
    """The number of ranks."""
    return dist.get_world_size() if _joined else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return dist.get_rank() if _joined else 0


def local_rank() -> int:
    """Its number on this machine, which is also that of its GPU."""
    return told("LOCAL_RANK", 0)


def local_world() -> int:
    """The number of ranks on this machine."""
    return told("LOCAL_WORLD_SIZE", 1) if _joined else 1


def restarted() -> bool:
    """Whether torchrun has restarted the ranks, on any machine, after one of them died."""
    return votes(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0") > 0


def votes(answer: bool) -> int:
    """The number of ranks that say yes; every rank has to vote, and waits for the others."""
    return int(answer) if world() == 1 else int(total(torch.tensor(int(answer))))  # asked after every update


def wait() -> None:
    """Wait until every rank has reached this point."""
    votes(True)


def same(number: int) -> bool:
    """Whether all ranks have the same number; if not, at least one of them gets False."""
    return int(total(torch.tensor(number))) == number * world()


def first_says(answer: bool) -> bool:
    """The answer of the first rank, whatever this one says."""
    return votes(answer and rank() == 0) > 0


def places(count: int, least: int = 0) -> Tensor:
    """This rank's share of `count` places: the same number on every rank, at least `least`, some past the end.

    >>> places(3)
    tensor([0, 1, 2])
    """
    size = max(math.ceil(count / world()), least)
    return torch.arange(size) * world() + rank()


def in_order(shares: Tensor, count: int) -> Tensor:
    """Collect the results for `places(count)` from all ranks, in order."""
    return gathered(shares).view(world(), *shares.shape).transpose(0, 1).flatten(0, 1)[:count]


def gathered(tensor: Tensor) -> Tensor:
    """The rows of all ranks, one rank after another; each rank must have the same number."""
    if world() == 1:
        return tensor
    found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world())]
    dist.all_gather(found, tensor.contiguous())
    return torch.cat(found)


def total(tensor: Tensor) -> Tensor:
    """The sum over ranks, the same on all; its derivatives are right for losses that are sums over ranks, too."""
    if world() == 1:
        return tensor
    found: Tensor = _Total.apply(tensor)  # type: ignore[no-untyped-call]
    return found


def totals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`total` of each tensor, with one exchange for all of them."""
    if world() == 1:
        return list(tensors)
    found = total(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = torch.split(found, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        found = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return total(grad)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return total(tangent)
