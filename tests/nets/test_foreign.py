"""Networks of users and of other libraries, and networks that do not train."""

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from builders import CPU64, make_tiny_task
from fasten.contract import Recipe
from fasten.engine import Fit, predict
from fasten.estimator import FasTENClassifier
from fasten.evaluate import Watch
from fasten.loader import Loader
from fasten.machine import Machine
from fasten.methods import METHODS
from fasten.nets import OneHead, TwoHead, build_backbone, foreign, needs_plain_layout
from fasten.records import Run
from fasten.runs.building import build_method, plan_of
from fasten.runs.notes import start_notes

SHAPE = (3, 8, 8)


class NormAct(nn.BatchNorm2d):
    """A batch norm with an activation in it, as timm has."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(
            self.drop(
                F.batch_norm(
                    x,
                    self.running_mean,
                    self.running_var,
                    self.weight,
                    self.bias,
                    self.training,
                    self.momentum,
                    self.eps,
                )
            )
        )


class OddNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) ** 2


class Published(nn.Module):
    """As libraries publish them: three colours in, a linear classifier at the end."""

    def __init__(self, norm=nn.BatchNorm2d, num_classes: int = 7) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), norm(5)
        self.fc = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, num_classes) if num_classes else nn.Identity())

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).mean((2, 3)))


class Returns(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


def test_a_network_that_says_how_many_features_it_returns_is_taken_as_it_is():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 9))
    net.num_features = 9
    assert build_backbone(net, SHAPE) is net


@pytest.mark.parametrize(
    ("make", "features"),
    [
        (lambda x: x.flatten(1), 192),
        (lambda x: x, 3),  # a map of features is averaged
        (lambda x: SimpleNamespace(pooler_output=x[:, :, :1, :1], last_hidden_state=x), 3),
        (lambda x: SimpleNamespace(pooler_output=None, last_hidden_state=x.flatten(2)), 64),  # the first token
    ],
)
def test_any_module_that_makes_a_row_of_an_example_is_a_network(make, features):
    net = build_backbone(Returns(make), SHAPE)
    x = torch.rand(4, *SHAPE)
    assert TwoHead(net, 2)(x)[0].shape == (4, 2)
    assert net(x).shape == (4, features)


def test_what_stands_in_a_wrong_attribute_is_not_believed():
    net = Returns(lambda x: x.flatten(1))
    net.num_features = 7
    assert build_backbone(net, SHAPE).num_features == 192


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda x: x.flatten(2),
            r"Returns returns 2×3×64 for two examples of 3×8×8; it must return \(batch, features\)",
        ),
        (lambda x: x[:1].flatten(1), "returns 1×192 for two examples"),
        (lambda x: (x, x), r"does not take examples of 3×8×8 \(it returns no tensor\)"),
        (lambda x: x @ torch.ones(5), r"does not take examples of 3×8×8 \(size mismatch.*--size"),
    ],
)
def test_what_makes_something_else_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        build_backbone(Returns(make), SHAPE)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, NormAct])
@pytest.mark.parametrize("mode", ["split", "two-pass"])
def test_batch_norms_of_others_see_each_batch_for_itself(norm, mode):
    """Against two calls of the network as it was before we took it."""
    torch.manual_seed(0)
    net = Published(norm, num_classes=0).double()
    before = copy.deepcopy(net)
    first, second = torch.rand(6, *SHAPE, dtype=torch.float64), 3 * torch.rand(4, *SHAPE, dtype=torch.float64)
    wanted = [before(first), before(second)]
    heads = OneHead(build_backbone(net, SHAPE), 2).double()
    outputs = [logits for (logits,) in heads.each([first, second], mode)]
    for got, features in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(got, heads.clean(features))
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(net.norm, name), getattr(before.norm, name))
    loss = sum((output**2).sum() for output in outputs)
    theirs = sum((heads.clean(features) ** 2).sum() for features in wanted)
    torch.testing.assert_close(
        torch.autograd.grad(loss, net.conv.weight), torch.autograd.grad(theirs, before.conv.weight)
    )


def test_a_batch_norm_that_would_lose_what_it_does_is_refused():
    with pytest.raises(ValueError, match=r"'net.norm' is a custom batch norm, OddNorm; use torch's"):
        OneHead(build_backbone(Published(OddNorm), SHAPE), 2)


@pytest.fixture
def library(monkeypatch):
    """Put a stand-in for a library, or for its absence, where it is imported from."""

    def put(name: str, value: object) -> None:
        monkeypatch.setitem(sys.modules, name, value)

    return put


@pytest.fixture
def torchvision(library):
    module = ModuleType("torchvision")
    module.models = SimpleNamespace(
        list_models=lambda module: ["published"], get_model=lambda name, weights: Published()
    )
    library("torchvision", module)


def test_a_network_of_torchvision_comes_without_its_last_layer(torchvision):
    net = build_backbone("torchvision:published", SHAPE)
    assert net.num_features == 6
    assert set(net.net.state_dict()) == {*Published(num_classes=0).state_dict()}


def test_a_network_of_timm_is_made_without_a_classifier(library):
    timm = ModuleType("timm")
    timm.is_model, timm.list_models = lambda name: name == "published", lambda: ["published"]
    timm.create_model = lambda name, pretrained, num_classes: Published(NormAct, num_classes)
    library("timm", timm)
    assert build_backbone("timm:published", SHAPE).num_features == 6
    with pytest.raises(ValueError, match=r"unknown network 'timm:publishd'; did you mean 'published'\?"):
        build_backbone("timm:publishd", SHAPE)
    with pytest.raises(ValueError, match="1 is known, none of them similar"):
        build_backbone("timm:zzz", SHAPE)


def test_grey_images_are_shown_to_published_networks_as_colours(torchvision):
    net = build_backbone("torchvision:published", (1, 8, 8)).eval()
    grey = torch.rand(2, 1, 8, 8)
    assert net(grey).equal(net.net(torch.cat([grey] * 3, 1)))


def test_weights_come_from_a_file_of_the_librarys_names_without_the_classifier(torchvision, tmp_path):
    torch.manual_seed(1)
    theirs = Published().state_dict()
    save_file(theirs, tmp_path / "w.safetensors")
    net = build_backbone("torchvision:published", SHAPE, weights=str(tmp_path / "w.safetensors"))
    assert all(tensor.equal(theirs[name]) for name, tensor in net.net.state_dict().items())
    save_file({**theirs, "stem.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"holds 'stem.weight', .* with torchvision's names"):
        build_backbone("torchvision:published", SHAPE, weights=str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("name", "module"),
    [("timm:resnet18", "timm"), ("torchvision:resnet18", "torchvision"), ("hf:folder", "transformers")],
)
def test_a_library_that_is_not_there_is_named_with_what_installs_it(library, name, module):
    library(module, None)
    with pytest.raises(ValueError, match=rf"library {module}; install it \(pip install {module}\)"):
        build_backbone(name, SHAPE)


def test_a_library_that_does_not_fit_torch_is_named(monkeypatch):
    def fail(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(foreign.importlib, "import_module", fail)
    with pytest.raises(ValueError, match=r"torchvision is installed but cannot be used \(operator .*that fits torch"):
        build_backbone("torchvision:resnet18", SHAPE)


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "hf:folder"])
def test_networks_for_images_do_not_take_rows(name):
    with pytest.raises(ValueError, match="does not take rows of features; use 'mlp'"):
        build_backbone(name, (4,))


def test_images_too_small_to_be_halved_are_refused():
    with pytest.raises(ValueError, match="images are 1×5 pixels; give at least 2×2, or their pixels as features"):
        build_backbone("small-cnn", (3, 1, 5))


def real(name: str):
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name} cannot be imported here: {error}")


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050"])
def test_real_networks_of_timm(name):
    wanted = real("timm").create_model(name, num_classes=0)
    net = build_backbone(f"timm:{name}", (3, 32, 32)).eval()
    net.net.load_state_dict(wanted.state_dict())
    x = torch.rand(2, 3, 32, 32)
    features = wanted.eval()(x)
    heads = OneHead(net, 2).eval()
    torch.testing.assert_close(heads(x)[0], heads.clean(features))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "convnext_tiny"])
def test_real_networks_of_torchvision(name):
    whole = real("torchvision").models.get_model(name, weights=None).eval()
    net = build_backbone(f"torchvision:{name}", (3, 64, 64)).eval()
    net.net.load_state_dict(whole.state_dict(), strict=False)
    last = [module for module in whole.modules() if isinstance(module, nn.Linear)][-1]
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(last(net(x)), whole(x))


def test_real_networks_of_transformers_start_from_their_folder(tmp_path):
    hf = real("transformers")
    config = hf.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32)
    whole = hf.ViTForImageClassification(config).eval()
    whole.save_pretrained(tmp_path / "vit")
    x = torch.rand(2, 3, 32, 32)
    net = build_backbone(f"hf:{tmp_path / 'vit'}", (3, 32, 32)).eval()
    torch.testing.assert_close(whole.classifier(net(x)), whole(x).logits)
    (tmp_path / "vit" / "model.safetensors").unlink()
    assert start_notes(Recipe(f"hf:{tmp_path / 'vit'}")) != []
    assert build_backbone(f"hf:{tmp_path / 'vit'}", (3, 32, 32)).num_features == 8
    with pytest.raises(ValueError, match=r"transformers cannot make 'hf:.*nothing' .*config.json"):
        build_backbone(f"hf:{tmp_path / 'nothing'}", (3, 32, 32))


@pytest.mark.parametrize("net", ["timm:resnet18", "torchvision:resnet18", "imagenet-resnet18"])
def test_starting_from_nothing_is_said(net):
    assert "starts from random weights; --set weights=FILE" in start_notes(Recipe(net))[0]
    assert start_notes(Recipe(net, weights="w.safetensors")) == []
    assert start_notes(Recipe("small-cnn")) == []
    assert "and is frozen in that state" in start_notes(Recipe("small-cnn", frozen=True))[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_frozen_network_stays_as_it_was_and_the_heads_train(name):
    task = make_tiny_task()
    run = Run("", method=name, recipe=Recipe("small-cnn", epochs=3, batch_size=20, rate=0.1, frozen=True))
    method = CPU64.place(build_method(run, task))
    before = copy.deepcopy(method.state_dict())
    loader = Loader(task, CPU64.device, 0, CPU64.dtype)
    Fit(method, plan_of(method, run.recipe), loader, CPU64, Watch(task, loader)).run()
    after = method.state_dict()
    assert all(before[key].equal(after[key]) for key in after if ".backbone." in key)
    assert not before["net.clean.weight"].equal(after["net.clean.weight"])
    assert not any(".backbone." in key for key, _ in method.named_parameters())


def test_weights_that_a_network_does_not_use_do_not_stop_a_look_ahead():
    net = Published(num_classes=0)
    net.spare = nn.Parameter(torch.zeros(2))
    task = make_tiny_task()
    given = torch.from_numpy(task.given)
    method = CPU64.place(METHODS["mw-net"].build(build_backbone(net, task.shape), given, num_classes=3))
    loader = Loader(task, CPU64.device, 0, CPU64.dtype)
    recipe = Recipe(epochs=1, batch_size=20, weight_decay=0.0)
    Fit(method, plan_of(method, recipe), loader, CPU64, Watch(task, loader)).run()
    assert net.spare.equal(torch.zeros(2, dtype=torch.float64))


def test_a_network_never_sees_a_batch_without_rows():
    """Some cannot: attention, for one."""
    task = make_tiny_task()
    none = task.split.test[:0]
    task = replace(task, split=replace(task.split, test=none), test=none)

    def features(x):
        assert len(x)
        return x.flatten(1)

    given = torch.from_numpy(task.given)
    method = CPU64.place(
        METHODS["cross-entropy"].build(build_backbone(Returns(features), task.shape), given, num_classes=3)
    )
    loader = Loader(task, CPU64.device, 0, CPU64.dtype)
    assert predict(method, loader, "test").shape == (0, 3)


class Viewed(nn.Module):
    """As many are written: a view of what a convolution made, which only one layout in memory allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu().view(len(x), -1)


class Volumes(nn.Module):
    """Colours as the slices of a volume: weights of five dimensions have no channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.unsqueeze(1)).flatten(1)


@pytest.mark.parametrize(
    ("make", "plain"), [(Viewed, True), (Volumes, True), (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), False)]
)
def test_a_network_keeps_the_layout_that_it_needs(make, plain):
    net = make()
    before = [weight.detach().clone() for weight in net.parameters()]
    head = Machine(torch.device("cpu")).place(OneHead(build_backbone(net, (3, 8, 8)), 2))
    assert needs_plain_layout(head) is plain
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))
    assert next(net.parameters()).is_contiguous() is plain
    x = torch.randn(5, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert head(x)[0].shape == (5, 2)


def test_such_a_network_is_trained_on_images():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8), np.arange(60) % 2
    clf = FasTENClassifier(net=Viewed(), epochs=1, device="cpu").fit(images, labels, y_verified=labels)
    assert clf.predict(images).shape == (60,)
