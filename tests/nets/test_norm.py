"""`split` computes what two passes compute; `joint` does not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fasten.nets import TwoHead
from fasten.nets.norm import PartedBatchNorm
from fasten.nets.resnet import BasicBlock, ResNet
from fasten.nets.small import MLP, SmallCNN

BACKBONES = {
    "resnet": (lambda: ResNet(BasicBlock, (1, 1), channels=2), (2, 6, 6)),
    "cnn": (lambda: SmallCNN(2, 4), (2, 6, 6)),
    "mlp": (lambda: MLP(5, 8), (5,)),
}


def net_and_batches(kind: str, sizes=(6, 4), updates: int = 20):
    torch.manual_seed(0)
    build, shape = BACKBONES[kind]
    net = TwoHead(build(), 3).double()
    batches = [[torch.randn(n, *shape, dtype=torch.float64) for n in sizes] for _ in range(updates)]
    return net, batches, [torch.randint(3, (n,)) for n in sizes]


def train(net, batches, labels, norm):
    """Outputs and gradients of every update of a plain SGD run."""
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    seen = []
    for batch in batches:
        (clean_a, noisy_a), (clean_b, _) = net.each(batch, norm)
        loss = (
            F.cross_entropy(clean_a, labels[0])
            + F.cross_entropy(noisy_a, labels[0])
            + F.cross_entropy(clean_b, labels[1])
        )
        optimizer.zero_grad()
        loss.backward()
        seen.append([clean_a, noisy_a, clean_b, *(p.grad.clone() for p in net.parameters())])
        optimizer.step()
    return seen


def largest_difference(a, b) -> float:
    return max(float(((x - y).abs().max() / (1e-12 + x.abs().max())).detach()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", BACKBONES)
def test_split_equals_two_passes_over_twenty_updates(kind):
    net, batches, labels = net_and_batches(kind)
    other = copy.deepcopy(net)
    for ours, theirs in zip(
        train(net, batches, labels, "split"), train(other, batches, labels, "two-pass"), strict=True
    ):
        assert largest_difference(theirs, ours) < 1e-10
    assert net.state_dict().keys() == other.state_dict().keys()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_joint_statistics_are_another_algorithm():
    net, batches, labels = net_and_batches("cnn", updates=1)
    other = copy.deepcopy(net)
    (ours,), (theirs,) = train(net, batches, labels, "joint"), train(other, batches, labels, "two-pass")
    assert largest_difference(theirs, ours) > 1e-3


def test_running_statistics_follow_the_closed_form_noisy_half_first():
    layer = nn.BatchNorm1d(4)
    backbone = nn.Sequential(layer)
    backbone.num_features = 4
    net = TwoHead(backbone, 2).double()
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    net.each([x, y], "split")
    m = 0.1
    var = (1 - m) ** 2 + m * (1 - m) * x.var(0) + m * y.var(0)
    torch.testing.assert_close(layer.running_mean, m * (1 - m) * x.mean(0) + m * y.mean(0))
    torch.testing.assert_close(layer.running_var, var)
    assert layer.num_batches_tracked == 2


def test_evaluation_and_names_are_those_of_plain_batch_norm():
    plain = SmallCNN(2, 4)
    net = TwoHead(copy.deepcopy(plain), 3).eval()
    assert {f"backbone.{name}" for name in plain.state_dict()} < set(net.state_dict())
    assert any(isinstance(module, PartedBatchNorm) for module in net.modules())
    x = torch.randn(4, 2, 6, 6)
    torch.testing.assert_close(net.backbone(x), plain.eval()(x))


def apart(net, groups):
    """The outputs of a network for the rows of each group, with a pass of their own, in the order of the groups."""
    return [net(x)[0] for x in groups if len(x)]


def mixed(net, groups, fill):
    """The same in one pass over all rows, shuffled, with filling that belongs to no group."""
    x = torch.cat([*groups, fill])
    group = torch.zeros(len(x), len(groups), dtype=torch.float64)
    starts = torch.tensor([0, *(len(rows) for rows in groups)]).cumsum(0).tolist()
    for number, (start, rows) in enumerate(zip(starts, groups, strict=False)):
        group[start : start + len(rows), number] = 1
    order = torch.randperm(len(x))
    with net.parts.using(group=group[order]):
        y = net(x[order])[0][order.argsort()]
    return [y[start : start + len(rows)] for start, rows in zip(starts, groups, strict=False) if len(rows)]


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("sizes", [(6, 4), (7, 0), (0, 5)])
@pytest.mark.parametrize("kind", BACKBONES)
def test_groups_of_a_mixed_batch_equal_a_pass_each(kind, sizes, momentum):
    net, batches, _ = net_and_batches(kind, sizes=(*sizes, 3), updates=3)
    for layer in net.modules():
        if isinstance(layer, PartedBatchNorm):
            layer.momentum = momentum
    other = copy.deepcopy(net)
    for *groups, fill in batches:
        found = {}
        for name, outputs, model in (("ours", mixed(net, groups, fill), net), ("theirs", apart(other, groups), other)):
            loss = sum((y.square() * torch.arange(1, 4)).sum() for y in outputs)
            found[name] = [*outputs, *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)]
        assert largest_difference(found["theirs"], found["ours"]) < 1e-10
    for name, value in other.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_virtual_passes_of_a_mixed_batch_leave_the_statistics_and_evaluation_knows_no_groups():
    net, ((x, fill),), _ = net_and_batches("cnn", updates=1)
    before = copy.deepcopy(net.state_dict())
    with net.parts.using(virtual=True):
        virtual = mixed(net, [x], fill)[0]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    net.eval()
    torch.testing.assert_close(mixed(net, [x], fill)[0], net(x)[0])
    net.train()
    torch.testing.assert_close(virtual, net(x)[0])


def test_filling_is_normalised_as_the_rows_that_count():
    net, ((x, _),), _ = net_and_batches("cnn", updates=1)
    group = torch.tensor([[0.0, 1.0]] * 6 + [[0.0, 0.0]] * 6)
    with net.parts.using(group=group):
        y = net(torch.cat([x, x]))[0]
    torch.testing.assert_close(y[6:], y[:6])


def test_a_group_of_one_value_moves_the_mean_alone():
    net, ((x, _),), _ = net_and_batches("mlp", sizes=(1, 0), updates=1)
    layer, weight = net.backbone.layers[1], net.backbone.layers[0].weight
    with net.parts.using(group=torch.tensor([[1.0]])):
        net(x)
    torch.testing.assert_close(layer.running_mean, 0.1 * (weight @ x[0]).detach())
    assert layer.running_var.tolist() == [1.0] * 8


def test_a_backbone_without_a_feature_size_is_refused():
    with pytest.raises(ValueError, match="num_features"):
        TwoHead(nn.Linear(2, 2), 3)


def test_more_batches_than_the_kernels_take_go_without_them(monkeypatch):
    monkeypatch.setattr("fasten.nets.fused_norm.usable", lambda x: True)
    net = TwoHead(BACKBONES["resnet"][0](), 3).train()
    norm = next(module for module in net.modules() if isinstance(module, PartedBatchNorm))
    found = {}
    for count in (1, 3, 4):
        with net.parts.using(fused=True, sizes=(2,) * count):
            found[count] = norm.can_fuse(torch.zeros(2 * count, 64, 4, 4))
    assert found == {1: True, 3: True, 4: False}
