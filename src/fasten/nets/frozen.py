"""A network that does not train."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Frozen(nn.Module):
    """A network whose weights are buffers, so that there are none to train; it stays in evaluation mode.

    >>> net = nn.Linear(3, 2)
    >>> net.num_features = 2
    >>> list(Frozen(net).parameters()), sorted(Frozen(net).state_dict())
    ([], ['net.bias', 'net.weight'])
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.num_features = net, net.num_features
        for module in list(net.modules()):
            for name, weight in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, weight.detach())
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features
