"""Networks; nothing here knows about training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from fasten.nets.foreign import LIBRARIES, build_foreign, has_weights, needs_plain_layout, with_features
from fasten.nets.frozen import Frozen
from fasten.nets.heads import Heads, OneHead, OpenHead, TwoHead
from fasten.nets.resnet import BasicBlock, Bottleneck, ResNet
from fasten.nets.small import MLP, PyramidCNN, SmallCNN
from fasten.nets.weights import load_weights
from fasten.suggest import nearest

__all__ = [
    "NETS",
    "Heads",
    "OneHead",
    "OpenHead",
    "TwoHead",
    "build_backbone",
    "has_weights",
    "needs_plain_layout",
]

# Name -> a function from the shape of one example, (channels, height, width) or (features,), to a feature extractor.
NETS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": lambda shape: MLP(shape[0]),
    "small-cnn": lambda shape: SmallCNN(shape[0]),
    "pyramid-cnn": lambda shape: PyramidCNN(shape[0], min(shape[1:])),
    "resnet18": lambda shape: ResNet(BasicBlock, (2, 2, 2, 2), channels=shape[0]),
    "resnet34": lambda shape: ResNet(BasicBlock, (3, 4, 6, 3), channels=shape[0]),
    "resnet50": lambda shape: ResNet(Bottleneck, (3, 4, 6, 3), channels=shape[0]),
    "imagenet-resnet18": lambda shape: ResNet(BasicBlock, (2, 2, 2, 2), channels=shape[0], stem="large"),
    "imagenet-resnet34": lambda shape: ResNet(BasicBlock, (3, 4, 6, 3), channels=shape[0], stem="large"),
    "imagenet-resnet50": lambda shape: ResNet(Bottleneck, (3, 4, 6, 3), channels=shape[0], stem="large"),
}


def build_backbone(
    net: str | nn.Module, shape: tuple[int, ...], *, weights: str | None = None, frozen: bool = False
) -> nn.Module:
    """A feature extractor for examples of a shape: one of ours, another library's (`timm:NAME`), or a user's own.

    A user's network is used as it is: any module that returns (B, D) or (B, D, h, w) for a batch. `weights` is a
    .safetensors file with the initial weights (a classifier in it is ignored); `frozen`: the network does not train.

    >>> build_backbone(nn.Conv2d(1, 5, 3), (1, 8, 8)).num_features
    5
    """
    if isinstance(net, nn.Module):
        name, backbone = type(net).__name__, with_features(net, type(net).__name__, shape)
    else:
        name, backbone = net, _by_name(net, shape)
    if weights is not None:
        load_weights(backbone, name, Path(weights).expanduser())
    return Frozen(backbone) if frozen else backbone


def _by_name(name: str, shape: tuple[int, ...]) -> nn.Module:
    if name.partition(":")[0] in LIBRARIES:
        return build_foreign(name, shape)
    if name not in NETS:
        known = [*NETS, *(f"{library}:NAME" for library in LIBRARIES)]
        raise ValueError(f"unknown network {name!r}; {nearest(name, known)}")
    if (name == "mlp") != (len(shape) == 1):
        kind = "rows of features" if len(shape) == 1 else "images"
        raise ValueError(f"network {name!r} does not take {kind}; " + ("use 'mlp'" if len(shape) == 1 else "use a CNN"))
    if name == "small-cnn" and min(shape[1:]) < 2:
        raise ValueError(f"images are {shape[1]}×{shape[2]} pixels; give at least 2×2, or their pixels as features")
    return NETS[name](shape)
