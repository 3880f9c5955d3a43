"""A feature extractor with one linear classifier, or two.

The backbone is any module with an integer `num_features` that maps a batch (a tensor of any type, or a dictionary) to
(B, num_features). It may run in a lower precision; logits always have the precision of the heads.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fasten.contract import NormMode
from fasten.nets.norm import forward_parts, share_parts
from fasten.nets.overlap import one_pass, overlap_convolutions


class Heads(nn.Module):
    """Linear classifiers on shared features; `forward` gives the logits of each, in the order of `names`."""

    def __init__(self, backbone: nn.Module, num_classes: int, names: tuple[str, ...]) -> None:
        super().__init__()
        features = getattr(backbone, "num_features", None)
        if not isinstance(features, int):
            raise ValueError("a backbone needs an integer attribute `num_features`, the size of what it returns")
        self.names, self.num_features = names, features
        self.backbone = backbone
        for name in names:
            self.add_module(name, nn.Linear(features, num_classes))
        self.parts = share_parts(backbone)
        overlap_convolutions(backbone, self.parts)
        self.precision: torch.dtype | None = None  # of the backbone; None: as its weights

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features = self.features(x)
        heads = [self.get_submodule(name) for name in self.names]
        linear = [head for head in heads if type(head) is nn.Linear and head.bias is not None]
        if len(linear) == 1 or len(linear) < len(heads):  # a user may have replaced some
            return tuple(head(features) for head in heads)
        weight, bias = (torch.cat(each) for each in zip(*((head.weight, head.bias) for head in linear), strict=True))
        return torch.chunk(F.linear(features, weight, bias), len(linear), 1)  # one matrix product for all

    def features(self, x: Tensor) -> Tensor:
        """What the classifiers see, (B, num_features)."""
        trains = self.parts.overlap and torch.is_grad_enabled()
        together = one_pass(self.backbone, self.parts) if trains else nullcontext()
        like = next(self.get_submodule(self.names[0]).parameters(), x)  # x may be integers, or a dictionary
        with torch.autocast(like.device.type, dtype=self.precision, enabled=self.precision is not None), together:
            features: Tensor = self.backbone(x)
        return features.to(like.dtype)

    def each(self, batches: list[Tensor], norm: NormMode) -> list[tuple[Tensor, ...]]:
        """The logits of several batches, with batch norm as `norm` says."""
        return forward_parts(self, self.parts, batches, norm)


class OneHead(Heads):
    """A plain classifier."""

    def __init__(self, backbone: nn.Module, num_classes: int) -> None:
        super().__init__(backbone, num_classes, ("clean",))


class OpenHead(OneHead):
    """A plain classifier that shows its features: `forward` gives (logits, features)."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features = self.features(x)
        return self.get_submodule("clean")(features), features


class TwoHead(Heads):
    """A clean and a noisy classifier on the same features.

    >>> from fasten.nets import build_backbone
    >>> net = TwoHead(build_backbone("mlp", (8,)), num_classes=3)
    >>> clean, noisy = net(torch.zeros(4, 8))
    >>> clean.shape, noisy.shape
    (torch.Size([4, 3]), torch.Size([4, 3]))
    """

    def __init__(self, backbone: nn.Module, num_classes: int) -> None:
        super().__init__(backbone, num_classes, ("clean", "noisy"))
