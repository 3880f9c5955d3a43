"""The weights that a network starts from, read from a file that someone else made."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fasten.nets.foreign import Foreign

CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.")  # what libraries call theirs; our heads start anew
COUNTERS = "num_batches_tracked"  # of batch norms: we have no use for them, and old files lack them


def load_weights(backbone: nn.Module, net: str, path: Path) -> None:
    """Load a .safetensors file into a backbone, which messages call `net`; a classifier in the file is left out.

    Names are those of the network's own library, or torchvision's for our residual networks.
    """
    target = backbone.net if isinstance(backbone, Foreign) else backbone
    wanted = target.state_dict()
    found = {n: tensor for n, tensor in _read(path).items() if n in wanted or not n.startswith(CLASSIFIERS)}
    for name in sorted(found):
        if name not in wanted:
            (close,) = get_close_matches(name, wanted, n=1, cutoff=0)
            raise ValueError(
                f"{path} holds {name!r}, which {net} does not have (the nearest is {close!r}); give the weights of "
                f"{net}, with {net.partition(':')[0] if ':' in net else 'torchvision'}'s names"
            )
    for name, tensor in wanted.items():
        if name not in found and not name.endswith(COUNTERS):
            raise ValueError(f"{path} lacks {name!r}; give the weights of {net}")
        if name in found and found[name].shape != tensor.shape:
            theirs, ours = ("×".join(map(str, t.shape)) for t in (found[name], tensor))
            raise ValueError(f"{path} holds {name!r} of {theirs}, but {net} has {ours}; give the weights of {net}")
    target.load_state_dict(found, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        raise ValueError(
            f"weights are read from a .safetensors file, got {path}; docs/clothing1m.md shows how to make one from "
            "torchvision's"
        )
    if not path.is_file():
        raise ValueError(
            f"the weights {path} are {'not a file' if path.exists() else 'not there'}; give a .safetensors file"
        )
    try:
        weights: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a .safetensors file ({error}); make it again") from None
    return weights
