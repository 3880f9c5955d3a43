"""Networks: nothing here knows of training."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fasten.nets.heads import Heads, OneHead, OpenHead, TwoHead
from fasten.nets.resnet import BasicBlock, Bottleneck, ResNet
from fasten.nets.small import MLP, SmallCNN
from fasten.suggest import nearest

__all__ = ["NETS", "Heads", "OneHead", "OpenHead", "TwoHead", "build_backbone"]

# A name -> from the shape of one example, (channels, height, width) or (features,), to a feature extractor.
NETS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": lambda shape: MLP(shape[0]),
    "small-cnn": lambda shape: SmallCNN(shape[0]),
    "resnet18": lambda shape: ResNet(BasicBlock, (2, 2, 2, 2), channels=shape[0]),
    "resnet34": lambda shape: ResNet(BasicBlock, (3, 4, 6, 3), channels=shape[0]),
    "resnet50": lambda shape: ResNet(Bottleneck, (3, 4, 6, 3), channels=shape[0]),
    "imagenet-resnet18": lambda shape: ResNet(BasicBlock, (2, 2, 2, 2), channels=shape[0], stem="large"),
    "imagenet-resnet34": lambda shape: ResNet(BasicBlock, (3, 4, 6, 3), channels=shape[0], stem="large"),
    "imagenet-resnet50": lambda shape: ResNet(Bottleneck, (3, 4, 6, 3), channels=shape[0], stem="large"),
}


def build_backbone(name: str, shape: tuple[int, ...]) -> nn.Module:
    """A feature extractor by name, for examples of a shape."""
    if name not in NETS:
        raise ValueError(f"unknown network {name!r}; {nearest(name, NETS)}")
    if (name == "mlp") != (len(shape) == 1):
        kind = "rows of features" if len(shape) == 1 else "images"
        raise ValueError(f"network {name!r} does not take {kind}; " + ("use 'mlp'" if len(shape) == 1 else "use a CNN"))
    return NETS[name](shape)
