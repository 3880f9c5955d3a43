"""Networks of other libraries and of users: whatever they return becomes one row of features per example.

timm, torchvision and transformers are only asked for networks that a user names, and nothing is downloaded: weights
come from a local file or, for a network of transformers, from the folder that holds it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fasten.sentences import are
from fasten.suggest import nearest, one_line

COLOURS = 3  # channels that published networks take; grey images are repeated to as many


class Foreign(nn.Module):
    """A network that someone else wrote, under its own names in `net`.

    `plain`: it needs images in torch's default memory layout and fails on channels last, as a network with
    `x.view(len(x), -1)` after a convolution does.
    """

    num_features: int

    def __init__(self, net: nn.Module, *, colours: bool = False) -> None:
        super().__init__()
        self.net, self.colours, self.plain = net, colours, False

    def forward(self, x: Tensor) -> Tensor:
        if self.colours and x.shape[1] == 1:
            x = x.expand(-1, COLOURS, -1, -1)
        return _pooled(self.net(x.contiguous() if self.plain else x))


def needs_plain_layout(net: nn.Module) -> bool:
    """Whether a network, or one inside it, cannot be used with channels last."""
    return any(isinstance(module, Foreign) and module.plain for module in net.modules())


def _pooled(output: Any) -> Tensor:
    """Features (B, D) from what a network returns: features, a map of them, or an output of transformers."""
    if not isinstance(output, Tensor):
        pooled, states = (getattr(output, name, None) for name in ("pooler_output", "last_hidden_state"))
        if pooled is None and isinstance(states, Tensor) and states.ndim == 3:
            pooled = states[:, 0]  # the class token, which their own classifiers see
        output = states if pooled is None else pooled
    if not isinstance(output, Tensor):
        raise TypeError("it returns no tensor")
    features: Tensor = output.mean((2, 3)) if output.ndim == 4 else output
    return features


def with_features(net: nn.Module, name: str, shape: tuple[int, ...]) -> nn.Module:
    """The network, with the number of features it returns in `num_features`: found by showing it two empty examples."""
    example = "×".join(map(str, shape))
    like = next(net.parameters(), torch.zeros(()))
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            output = _pooled(net(torch.zeros(2, *shape, dtype=like.dtype, device=like.device)))
    except Exception as error:  # whatever a network raises on examples that it cannot take
        reason = one_line(error, 200).rstrip(".")
        cure = "give images of its size (--size, or size in Python)" if len(shape) > 1 else "it may be one for images"
        raise ValueError(f"{name} does not take examples of {example} ({reason}); {cure}") from error
    finally:
        net.train(training)
    if output.ndim != 2 or len(output) != 2:
        found = "×".join(map(str, output.shape))
        raise ValueError(f"{name} returns {found} for two examples of {example}; it must return (batch, features)")
    plain = len(shape) == 3 and not _takes_channels_last(net, shape)
    if getattr(net, "num_features", None) == output.shape[1] and not isinstance(net, Foreign) and not plain:
        return net
    wrapped = net if isinstance(net, Foreign) else Foreign(net)
    wrapped.num_features, wrapped.plain = output.shape[1], plain
    return wrapped


def _takes_channels_last(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a network also takes such examples channels last. It is tried; the weights stay as they were."""
    like, training = next(net.parameters(), torch.zeros(())), net.training
    example = torch.zeros(2, *shape, dtype=like.dtype, device=like.device)
    last: Any = {"memory_format": torch.channels_last}
    try:
        net.eval().to(**last)
        with torch.no_grad():
            _pooled(net(example.to(**last)))
    except Exception:  # whatever a network raises
        return False
    finally:
        net.train(training).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return True


def build_foreign(name: str, shape: tuple[int, ...]) -> nn.Module:
    """A network of another library, `timm:NAME`, `torchvision:NAME` or `hf:NAME`, without its classifier."""
    library, _, model = name.partition(":")
    if len(shape) != 3:
        raise ValueError(f"network {name!r} does not take rows of features; use 'mlp'")
    return with_features(Foreign(LIBRARIES[library](model), colours=True), name, shape)


def has_weights(name: str) -> bool:
    """Whether a network by this name comes with weights: only transformers' do, unless their folder holds none.

    >>> has_weights("timm:resnet18")
    False
    """
    library, _, model = name.partition(":")
    return library == "hf" and not _is_bare(model)


def _timm(name: str) -> nn.Module:
    timm = _imported("timm")
    if not timm.is_model(name):
        raise ValueError(f"unknown network 'timm:{name}'; {_few(name, timm.list_models())}")
    net: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return net


def _torchvision(name: str) -> nn.Module:
    models = _imported("torchvision").models
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"unknown network 'torchvision:{name}'; {_few(name, known)}")
    net: nn.Module = models.get_model(name, weights=None)
    linear = [place for place, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear or getattr(net, "aux_logits", False):
        raise ValueError(f"the classifier of 'torchvision:{name}' is not one linear layer; use another network")
    net.set_submodule(linear[-1], nn.Identity())
    return net


def _hf(name: str) -> nn.Module:
    """A network from a folder, or from what the library has downloaded before; code that comes with it is not run."""
    transformers = _imported("transformers")
    name = os.path.expanduser(name)
    try:
        with _quiet(transformers.utils.logging):
            net, lacking = _load_hf(transformers, name)
    except Exception as error:  # whatever the library raises on a name or a folder that it does not know
        reason = one_line(error, 200)
        raise ValueError(
            f"transformers cannot load 'hf:{name}' ({reason}); give a folder with its config.json and "
            "model.safetensors, or download it first"
        ) from error
    if lacking:
        raise ValueError(f"the weights in {name} lack {lacking[0]!r}; give weights of the network in its config.json")
    if hasattr(getattr(net, "pooler", None), "dense"):
        net.pooler = None  # one more layer, which the files of classifiers lack
    found: nn.Module = net.float()  # files may be in half precision
    return found


def _load_hf(transformers: Any, name: str) -> tuple[Any, list[str]]:
    """The network, and which of its weights the folder's files lack."""
    only: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if _is_bare(name):
        return transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(name, **only)), []
    net, loading = transformers.AutoModel.from_pretrained(name, use_safetensors=True, output_loading_info=True, **only)
    return net, sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Silence the library's progress bars and tables: our own messages say what matters."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


LIBRARIES: dict[str, Callable[[str], nn.Module]] = {"timm": _timm, "torchvision": _torchvision, "hf": _hf}


def _is_bare(name: str) -> bool:
    """Whether this is a folder that holds no weights."""
    folder = Path(name).expanduser()
    return folder.is_dir() and not any(folder.glob("*.safetensors"))


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except Exception as error:  # torchvision built for another torch fails in its own ways
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            raise ValueError(f"the network needs the library {library}; install it (pip install {library})") from None
        reason = one_line(error, 200)
        raise ValueError(
            f"the library {library} is installed but cannot be used ({reason}); install a version that fits torch"
        ) from error


def _few(name: str, known: list[str]) -> str:
    """The nearest of many names."""
    answer = nearest(name, known)
    return answer if answer.endswith("?") else f"{len(known)} {are(len(known))} known, none of them similar"
