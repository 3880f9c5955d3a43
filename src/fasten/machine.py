"""What a run computes on: device, precision, and the fast paths in use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fasten.nets import Heads

# Below this many updates a compiled network does not earn back the time that compiling takes.
UPDATES_WORTH_COMPILING = 5000


@dataclass(frozen=True)
class Machine:
    """Eager and exact on a CPU; on a GPU bf16, channels-last, one update captured as a graph."""

    device: torch.device
    precision: Literal["float32", "bf16", "float64"] = "float32"
    capture: bool = False
    compile: bool = False
    deterministic: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, inputs and losses; bf16 is used inside the networks only."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def name(self) -> str:
        if self.device.type == "cuda":
            return f"{self.device} {torch.cuda.get_device_name(self.device)}"
        return f"{self.device} {platform.processor() or platform.machine()}, {os.cpu_count()} cores"

    def for_updates(self, updates: int) -> Machine:
        """The same, compiling networks where so many updates earn it back."""
        return self.with_compile(updates >= UPDATES_WORTH_COMPILING)

    def with_compile(self, wanted: bool) -> Machine:
        """Compiled networks are for GPUs; a CPU stays eager and exact."""
        return replace(self, compile=wanted and self.device.type == "cuda")

    def place(self, method: nn.Module) -> nn.Module:
        """Move a method there, in the precision and layout that suit it."""
        method.to(self.device, self.dtype)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = not self.deterministic
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in method.modules():
            if isinstance(module, Heads):
                module.precision = torch.bfloat16 if self.precision == "bf16" else None
        return method


def choose_machine(device: str = "auto", *, deterministic: bool = False) -> Machine:
    """The device by name: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}; known: auto, cpu, cuda, cuda:N, mps") from None
    _check_present(chosen)
    if chosen.type != "cuda":
        return Machine(chosen)
    numbered = torch.device("cuda", torch.cuda.current_device()) if ":" not in device else chosen
    return Machine(numbered, "bf16", capture=True, deterministic=deterministic)


def _check_present(device: torch.device) -> None:
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= found:
            raise ValueError(f"device {str(device)!r} is not there: {found} CUDA devices found; try --device auto")
    elif device.type == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device 'mps' is not there; try --device auto")
    elif device.type != "cpu":
        raise ValueError(f"unknown device {str(device)!r}; known: auto, cpu, cuda, cuda:N, mps")
