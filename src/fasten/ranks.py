"""One run on several processes, the ranks that torchrun starts: who does what, and what they add up.

Every rank draws the whole batch and takes its share of it; whatever is summed over rows is summed over ranks too. So
after each update all ranks hold the same, and the first one alone writes. With one process everything here is the
identity. Nobody else's process group is touched: ranks count between `joined()` and its end only.
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

LEAST = 2  # rows of a share: batch norm wants more than one

_joined = False


@contextmanager
def joined() -> Iterator[None]:
    """Work as one of the ranks that the environment speaks of, if there are several."""
    global _joined
    if not is_one_of_several():
        yield
        return
    # Imported later, by an optimiser say, torch's compiler would take hold of the group for good; its threads would
    # outlive the interpreter, and now and then abort a run that has ended well.
    importlib.import_module("torch._dynamo")
    try:
        store, number, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=_own_part(store, number, count), rank=number, world_size=count)
        _joined = True
        try:
            yield
        except BaseException:
            if not torch.cuda.is_available():  # NCCL would wait for the others, which may be gone
                atexit.register(dist.destroy_process_group)  # later: torchrun may end this rank before it has said why
            raise
        dist.destroy_process_group()
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise ConnectionError(
            f"rank {os.environ.get('RANK')} has lost the others: {str(error).split('. ')[0]}"
        ) from error
    finally:
        _joined = False


def _own_part(store: Any, number: int, count: int) -> Any:
    """A part of torchrun's store for these ranks alone.

    The store outlives them (torch 2.13), and they would wait for ever for dead ones that it still speaks of. So the
    first rank thinks of a name and tells it to each other rank under a word that only this one's own process knows.
    """
    mine = uuid.uuid4().hex
    if number > 0:
        store.set(f"fasten/{number}", mine)
        name = store.get(f"fasten/{mine}").decode()
        store.add(f"fasten/{name}", 1)
    else:
        name = mine
        while store.add(f"fasten/{name}", 0) < count - 1:
            for other in range(1, count):  # to a dead one too, until a living one has written its word over it
                store.set(f"fasten/{store.get(f'fasten/{other}').decode()}", name)
            time.sleep(0.02)
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def world() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if _joined else 1


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if _joined else 0


def local_rank() -> int:
    """Its number on this machine, which is that of its GPU."""
    return told("LOCAL_RANK", 0)


def local_world() -> int:
    """How many ranks there are on this machine."""
    return told("LOCAL_WORLD_SIZE", 1) if _joined else 1


def restarted() -> bool:
    """Whether torchrun has started the ranks again, after one of them died; on some machine: each has its count."""
    return votes(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0") > 0


def votes(answer: bool) -> int:
    """How many ranks say yes; all have to vote, and wait for the others."""
    return int(answer) if world() == 1 else int(total(torch.tensor(int(answer))))  # asked after every update


def wait() -> None:
    """Until every rank has come so far."""
    votes(True)


def same(number: int) -> bool:
    """Whether all ranks have this number; where they have not, at least one of them finds out."""
    return int(total(torch.tensor(number))) == number * world()


def first_says(answer: bool) -> bool:
    """What the first rank says, whatever this one does."""
    return votes(answer and rank() == 0) > 0


def places(count: int, least: int = 0) -> Tensor:
    """This rank's share of `count` things: as many places on every rank, at least `least`, some of them past the end.

    >>> places(3)
    tensor([0, 1, 2])
    """
    size = max(math.ceil(count / world()), least)
    return torch.arange(size) * world() + rank()


def in_order(shares: Tensor, count: int) -> Tensor:
    """What was made of the things at `places(count)`, brought together from all ranks."""
    return gathered(shares).view(world(), *shares.shape).transpose(0, 1).flatten(0, 1)[:count]


def gathered(tensor: Tensor) -> Tensor:
    """The rows of all ranks, one rank after another; each has as many."""
    if world() == 1:
        return tensor
    found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world())]
    dist.all_gather(found, tensor.contiguous())
    return torch.cat(found)


def total(tensor: Tensor) -> Tensor:
    """The sum over ranks, the same on all; its derivatives are right for a loss that is a sum over ranks itself."""
    if world() == 1:
        return tensor
    found: Tensor = _Total.apply(tensor)  # type: ignore[no-untyped-call]
    return found


def totals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`total` of each, by one exchange for all of them."""
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
