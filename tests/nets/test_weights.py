"""A network starts from a file of torchvision's names, or says what is wrong with it."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from fasten.nets import build_backbone
from fasten.nets.weights import load_weights

NET = "imagenet-resnet18"


@pytest.fixture(scope="module")
def weights():
    """As torchvision has them, with a classifier of a thousand classes."""
    torch.manual_seed(0)
    state = build_backbone(NET, (3, 32, 32)).state_dict()
    return {**state, "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


def fill(path, tensors, net=NET):
    save_file(tensors, path)
    backbone = build_backbone(net, (3, 32, 32))
    load_weights(backbone, net, path)
    return backbone.state_dict()


def test_every_weight_is_that_of_the_file_and_the_classifier_is_left_out(weights, tmp_path):
    found = fill(tmp_path / "w.safetensors", weights)
    assert all(tensor.equal(weights[name]) for name, tensor in found.items())
    assert set(weights) - set(found) == {"fc.weight", "fc.bias"}


def test_files_from_before_batch_norms_counted_are_read(weights, tmp_path):
    old = {name: tensor for name, tensor in weights.items() if not name.endswith("num_batches_tracked")}
    found = fill(tmp_path / "w.safetensors", old)
    assert found["layer4.1.bn2.running_var"].equal(weights["layer4.1.bn2.running_var"])


def test_weights_of_half_precision_are_widened(weights, tmp_path):
    found = fill(tmp_path / "w.safetensors", {name: tensor.half() for name, tensor in weights.items()})
    assert found["conv1.weight"].dtype == torch.float32
    assert found["conv1.weight"].equal(weights["conv1.weight"].half().float())


def without(name):
    return lambda weights: {key: tensor for key, tensor in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("layer1.0.conv1.weight"), "lacks 'layer1.0.conv1.weight'; give the weights of imagenet-resnet18"),
        (without("bn1.running_mean"), "lacks 'bn1.running_mean'"),
        (
            lambda w: {**w, "layer1.0.conv9.weight": torch.zeros(1)},
            "holds 'layer1.0.conv9.weight', .* nearest is 'layer",
        ),
        (lambda w: {f"module.{name}": t for name, t in w.items()}, r"'module.bn1.bias', .* nearest is 'bn1.bias'"),
        (lambda w: {"x": torch.zeros(1)}, "holds 'x', which imagenet-resnet18 does not have"),
        (lambda w: {**w, "conv1.weight": torch.zeros(64, 3, 3, 3)}, "of 64×3×3×3, but imagenet-resnet18 has 64×3×7×7"),
    ],
)
def test_weights_of_something_else_are_refused(weights, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        fill(tmp_path / "w.safetensors", change(weights))


def test_weights_of_another_network_are_refused(weights, tmp_path):
    with pytest.raises(ValueError, match="give the weights of imagenet-resnet34"):
        fill(tmp_path / "w.safetensors", weights, "imagenet-resnet34")


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        (
            "w.pth",
            lambda path: path.write_bytes(b"x"),
            "read from a .safetensors file, got .*w.pth; docs/clothing1m.md",
        ),
        ("w.safetensors", lambda path: None, "w.safetensors are not there"),
        ("w.safetensors", lambda path: path.mkdir(), "w.safetensors are not a file"),
        (
            "w.safetensors",
            lambda path: path.write_bytes(b"damaged"),
            "w.safetensors is damaged or not a .safetensors file",
        ),
    ],
)
def test_what_is_no_file_of_weights_is_named(tmp_path, name, make, words):
    make(tmp_path / name)
    with pytest.raises(ValueError, match=words):
        load_weights(build_backbone("small-cnn", (3, 8, 8)), "small-cnn", tmp_path / name)
