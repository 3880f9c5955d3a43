"""From features and a given label to a soft label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Corrector(nn.Module):
    """q = softmax(MLP([h ; e(y)])), row by row: 101,130 parameters for 512 features and ten classes.

    With `skip`, one more output a keeps a part of the given label: q ← (1 − σ(a)) q + σ(a) onehot(y).

    >>> Corrector(8, num_classes=3)(torch.zeros(2, 8), torch.tensor([0, 2])).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, num_features: int, num_classes: int, *, embedding: int = 128, hidden: int = 128, skip: bool = False
    ) -> None:
        super().__init__()
        self.num_classes, self.skip = num_classes, skip
        self.embedding = nn.Embedding(num_classes, embedding)
        self.layers = nn.Sequential(
            nn.Linear(num_features + embedding, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, num_classes + skip),
        )
        nn.init.xavier_uniform_(self.embedding.weight)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        outputs = self.layers(torch.cat([features, self.embedding(labels)], 1))
        q = torch.softmax(outputs[:, : self.num_classes], 1)  # (B, N)
        if not self.skip:
            return q
        kept = torch.sigmoid(outputs[:, self.num_classes :])  # (B, 1)
        return (1 - kept) * q + kept * F.one_hot(labels, self.num_classes)
