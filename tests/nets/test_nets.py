import pytest
import torch

from fasten.nets import NETS, TwoHead, build_backbone

# Trainable parameters without a classifier. torchvision's ResNets, less their fc layer: 11,689,512 − 513,000 and so on.
KNOWN_SIZES = {"imagenet-resnet18": 11_176_512, "imagenet-resnet34": 21_284_672, "imagenet-resnet50": 23_508_032}


@pytest.mark.parametrize("name", NETS)
def test_every_network_maps_a_batch_to_its_features(name):
    shape = (12,) if name == "mlp" else (3, 32, 32) if name.startswith("imagenet") else (3, 8, 8)
    net = build_backbone(name, shape).eval()
    assert net(torch.zeros(2, *shape)).shape == (2, net.num_features)


@pytest.mark.parametrize(
    ("shape", "size", "left"),
    [((3, 7, 7), 16, (7, 7)), ((1, 17, 40), 64, (4, 10)), ((3, 33, 32), 128, (4, 4)), ((3, 100, 99), 128, (6, 6))],
)
def test_a_pyramid_ends_with_few_pixels_of_the_shorter_side(shape, size, left):
    net = build_backbone("pyramid-cnn", shape).eval()
    assert net.layers(torch.zeros(1, *shape)).shape == (1, size, *left)
    assert net.num_features == size


@pytest.mark.parametrize(("name", "pixels"), [("small-cnn", 10), ("pyramid-cnn", 40)])
def test_a_feature_of_a_pyramid_sees_the_whole_image_and_one_of_the_small_cnn_ten_pixels(name, pixels):
    torch.manual_seed(0)
    net, x = build_backbone(name, (3, 40, 40)).eval(), torch.rand(1, 3, 40, 40, requires_grad=True)
    features = net.layers(x)
    middle = features.shape[2] // 2
    features[0, :, middle, middle].sum().backward()
    seen = x.grad.abs().amax((0, 1, 2)).nonzero()
    assert int(seen.max() - seen.min()) + 1 == pixels


@pytest.mark.parametrize("name", KNOWN_SIZES)
def test_imagenet_networks_have_the_published_number_of_weights(name):
    assert sum(p.numel() for p in build_backbone(name, (3, 32, 32)).parameters()) == KNOWN_SIZES[name]


def test_imagenet_networks_have_torchvisions_names():
    names = set(build_backbone("imagenet-resnet50", (3, 32, 32)).state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv3.weight", "layer4.0.downsample.1.bias"} <= names


def test_the_papers_network_has_the_second_head_of_the_paper():
    net = TwoHead(build_backbone("resnet34", (3, 32, 32)), 10)
    assert sum(p.numel() for p in net.noisy.parameters()) == 512 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [("resnet43", (3, 8, 8), "did you mean"), ("mlp", (3, 8, 8), "images"), ("resnet18", (4,), "mlp")],
)
def test_an_unknown_or_unfit_network_is_refused(name, shape, words):
    with pytest.raises(ValueError, match=words):
        build_backbone(name, shape)
