"""The machine of a run: device, precision, and the fast paths in use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fasten.augment import image_layout
from fasten.kernels import AVAILABLE
from fasten.nets import Heads, needs_plain_layout
from fasten.ranks import local_rank, world

# How networks run on a GPU: with torch's own kernels; with our fused batch norms; with these and weight gradients on a
# stream of their own; or with torch.compile, which takes half a minute to compile.
Kernels = Literal["plain", "fused", "overlapped", "compiled"]
OWN_KERNELS = ("fused", "overlapped")
BF16 = (8, 0)  # least compute capability of an NVIDIA GPU with bf16; older ones only emulate it


@dataclass(frozen=True)
class Machine:
    """Eager and exact on a CPU; on a GPU in bf16 if it has that, channels last, with one update captured."""

    device: torch.device
    precision: Literal["float32", "bf16", "float64"] = "float32"
    capture: bool = False
    kernels: Kernels = "plain"
    deterministic: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, inputs and losses; bf16 is only used inside networks."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def name(self) -> str:
        ranks = "" if world() == 1 else f", {world()} ranks"
        if self.device.type == "cuda":
            return f"{self.device} {torch.cuda.get_device_name(self.device)}{ranks}"
        return f"{self.device} {platform.processor() or platform.machine()}, {os.cpu_count()} cores{ranks}"

    def place(self, method: nn.Module) -> nn.Module:
        """Move a method to the device, in the precision and memory layout for it."""
        method.to(self.device, self.dtype)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = not self.deterministic
            torch.backends.cudnn.deterministic = self.deterministic
        for module in method.modules():
            if isinstance(module, Heads):
                if not needs_plain_layout(module):
                    module.to(memory_format=image_layout(self.device, self.dtype))  # type: ignore[call-overload]
                module.precision = torch.bfloat16 if self.precision == "bf16" else None
                module.parts.fused = self.kernels in OWN_KERNELS
                module.parts.overlap = self.kernels == "overlapped"
        return method

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def choose_machine(device: str | torch.device | None = None, *, deterministic: bool = False) -> Machine:
    """Choose a device by name, `auto` (or None), `cpu`, `cuda`, `cuda:1` or `mps`, or by `torch.device`."""
    device = "auto" if device is None else str(device)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if device.startswith("cuda") and world() > 1:
        device = _own_gpu(device)
    chosen = named_device(device)
    _check_present(chosen)
    if chosen.type != "cuda":
        return Machine(chosen)
    numbered = torch.device("cuda", torch.cuda.current_device()) if ":" not in device else chosen
    machine = Machine(numbered, capture=world() == 1, deterministic=deterministic)
    if torch.cuda.get_device_capability(numbered) < BF16:
        return machine
    kernels: Kernels = "overlapped" if AVAILABLE else "plain"  # torch.compile needs Triton too
    return replace(machine, precision="bf16", kernels=kernels)


def named_device(name: str) -> torch.device:
    """The device of this name, whether or not it is there; `auto` is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps") or (device.type == "cpu" and device.index):
        raise ValueError(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:N, mps")
    return device


def _own_gpu(device: str) -> str:
    """The GPU of this rank, by the rank's number on its machine."""
    if device != "cuda":
        raise ValueError(f"under torchrun each rank uses its own GPU; write --device cuda, not {device}")
    if local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())
    return f"cuda:{local_rank()}"


def _check_present(device: torch.device) -> None:
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= found:
            raise ValueError(f"device {str(device)!r} does not exist: {found} CUDA devices found; try auto")
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' is not available here; try auto")
