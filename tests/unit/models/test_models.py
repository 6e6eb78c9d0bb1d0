"""Networks and the handle that makes them."""

from __future__ import annotations

import functools
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from fnll import models
from fnll.errors import UserError
from fnll.models.large import ResNet18_Weights, VGG11_Weights, torchvision_resnet18
from fnll.net import Net
from fnll.weights import snapshot

CONFIGS = Path(__file__).parents[3] / "configs" / "model"
SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [64]},
    "small_cnn": {"width": 16, "hidden": 64},
    "lenet5": {},
    "lenet_bn": {},
    "cnn4conv": {"width": 64},
    "cifar_resnet18": {},
    "cifar_resnet34": {},
    "resnet18": {},
    "resnet50": {},
    "vgg11": {},
}
HEAVY = ("resnet50", "vgg11")  # built on the meta device: shapes without numbers


def make(name: str, shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, **settings: Any) -> models.Network:
    return getattr(models, name)(num_classes=classes, input_shape=shape, **{**SETTINGS[name], **settings})


def parameters(net: nn.Module) -> int:
    return sum(value.numel() for value in net.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_logits_are_the_head_of_the_features(name: str, channels: int) -> None:
    device = "meta" if name in HEAVY else "cpu"
    with torch.device(device):
        net = make(name, (channels, 32, 32), classes=7).eval()
        x = torch.rand(3, channels, 32, 32)
    with torch.no_grad():
        features, logits = net.features(x), net(x)
    assert features.shape == (3, net.head.in_features)
    assert logits.shape == (3, 7)
    assert net.head.out_features == 7
    if device == "cpu":
        assert torch.equal(logits, net.head(features))
        assert logits.std() > 0


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
        ("small_cnn", (1, 8, 8), 10, (9 * 16 + 16) + (9 * 16 * 32 + 32) + (32 * 4 * 64 + 64) + 650),
        ("lenet5", (1, 32, 32), 10, 61_706),  # LeCun et al. 1998, with every map of C3 connected to every map of S2
        ("lenet5", (3, 32, 32), 10, 62_006),
        ("lenet_bn", (1, 32, 32), 10, 61_706 + 2 * 16),
        ("cnn4conv", (3, 32, 32), 10, (27 * 64 + 64) + 3 * (9 * 64 * 64 + 64) + 4 * 128 + 2570),
        ("cifar_resnet18", (3, 32, 32), 10, 11_173_962),
        ("cifar_resnet34", (3, 32, 32), 100, 21_328_292),
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # the three numbers that torchvision's documentation gives
        ("resnet50", (3, 224, 224), 1000, 25_557_032),
        ("vgg11", (3, 224, 224), 1000, 132_863_336),
    ],
)
def test_sizes_are_the_published_ones(name: str, shape: tuple[int, int, int], classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(make(name, shape, classes)) == expected


@pytest.mark.parametrize("name", ["mlp", "small_cnn", "cifar_resnet18"])
def test_small_and_oblong_images_fit(name: str) -> None:
    for shape in ((1, 8, 8), (3, 9, 14)):
        assert make(name, shape).eval()(torch.rand(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(("name", "side"), [("small_cnn", 3), ("lenet5", 15), ("cnn4conv", 15), ("vgg11", 31)])
def test_images_that_are_too_small_are_refused(name: str, side: int) -> None:
    with pytest.raises(UserError, match=rf"model={name} needs images of at least {side + 1}x{side + 1}"):
        make(name, (1, side, 40))
    with torch.device("meta"):
        assert make(name, (1, side + 1, 40))(torch.rand(2, 1, side + 1, 40)).shape == (2, 10)


@pytest.mark.parametrize(("name", "setting"), [("mlp", {"hidden": [3, 0]}), ("small_cnn", {"width": 0})])
def test_empty_layers_are_refused(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="at least one unit"):
        make(name, **setting)


def test_pooling_before_relu_changes_no_bit() -> None:
    x = torch.randn(4, 3, 8, 8).round(decimals=1)  # rounding makes ties
    grads, outs = [], []
    for order in (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), nn.Sequential(nn.MaxPool2d(2), nn.ReLU())):
        leaf = x.clone().requires_grad_()
        out = order(leaf)
        (out * torch.arange(out.numel()).view_as(out)).sum().backward()
        outs.append(out)
        grads.append(leaf.grad)
    assert torch.equal(*outs)
    assert torch.equal(*grads)


def test_cifar_resnet_keeps_full_resolution_and_torch_initialisation() -> None:
    net = make("cifar_resnet18")
    body: Any = net.body
    assert body.conv1.stride == (1, 1)
    assert body.layer1(body.maxpool(body.conv1(torch.rand(1, 3, 32, 32)))).shape[-2:] == (32, 32)
    weight = body.layer1[0].conv1.weight
    assert weight.abs().max() <= 1 / (9 * 64) ** 0.5  # uniform(±1/sqrt(fan_in))


def test_lenet_bn_normalises_after_the_second_relu_and_pooling() -> None:
    net = make("lenet_bn", (1, 32, 32)).eval()
    place = next(i for i, layer in enumerate(net.body) if isinstance(layer, nn.BatchNorm2d))
    with torch.no_grad():
        before = net.body[:place](torch.rand(2, 1, 32, 32))
    assert before.shape == (2, 16, 5, 5)
    assert before.min() == 0


def test_cnn4conv_normalises_by_the_batch_even_in_evaluation() -> None:
    net = make("cnn4conv").eval()
    x = torch.rand(8, 3, 32, 32)
    assert not list(net.buffers())
    assert not torch.allclose(net(x)[:2], net(x[:2]), atol=1e-3)


def test_no_batch_normalisation_in_the_small_networks() -> None:
    for name in ("mlp", "small_cnn", "lenet5"):
        assert not list(make(name).buffers())


# --- pretrained ------------------------------------------------------------------------------------------------------


def save(state: dict[str, Tensor], path: Path) -> str:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_pretrained_from_a_finished_run(tmp_path: Path, suffix: str) -> None:
    first = make("small_cnn")
    file = save(snapshot(first), tmp_path / f"weights{suffix}")
    second = make("small_cnn", pretrained=file)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = make("small_cnn", classes=4, pretrained=file)
    assert torch.equal(other.body.get_parameter("0.weight"), first.body.get_parameter("0.weight"))
    assert other.head.out_features == 4


def test_pretrained_in_torchvision_names_and_for_grey_images(tmp_path: Path) -> None:
    donor = torchvision_resnet18(weights=None, num_classes=10).eval()
    file = save(donor.state_dict(), tmp_path / "resnet18.pth")
    x = torch.rand(2, 1, 64, 64)
    colour = make("resnet18", (3, 64, 64), pretrained=file).eval()
    grey = make("resnet18", (1, 64, 64), pretrained=file).eval()
    with torch.no_grad():
        expected = donor(x.expand(-1, 3, -1, -1))
        torch.testing.assert_close(colour(x.expand(-1, 3, -1, -1)), expected)
        torch.testing.assert_close(grey(x), expected, rtol=1e-4, atol=1e-5)


def test_pretrained_by_torchvision_keeps_the_body_and_renews_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    donor = torchvision_resnet18(weights=None)
    asked = []

    def published(self: ResNet18_Weights, **_: Any) -> dict[str, Tensor]:
        asked.append(self)
        return donor.state_dict()

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", published)
    net = make("resnet18", classes=5, pretrained="torchvision")
    assert asked == [ResNet18_Weights.IMAGENET1K_V1]  # the weights the papers had
    assert torch.equal(net.body.get_parameter("layer4.1.conv2.weight"), donor.get_parameter("layer4.1.conv2.weight"))
    assert net.head.weight.shape == (5, 512)
    assert net.head.weight.std() > 0


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: VGG11_Weights, **_: Any) -> dict[str, Tensor]:
        raise OSError("no route")

    monkeypatch.setattr(VGG11_Weights, "get_state_dict", offline)
    with torch.device("meta"), pytest.raises(UserError, match=r"no route.*type model\.pretrained=path"):
        make("vgg11", pretrained="torchvision")


def test_bad_pretrained_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="publishes no weights"):
        make("mlp", pretrained="torchvision")
    with pytest.raises(UserError, match="no file"):
        make("mlp", pretrained=str(tmp_path / "none.pt"))
    for name in ("garbage.pt", "garbage.safetensors"):
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(UserError, match="cannot be read"):
            make("mlp", pretrained=str(tmp_path / name))
    torch.save({"epoch": 3}, tmp_path / "more.pt")
    with pytest.raises(UserError, match="more than a network's state"):
        make("mlp", pretrained=str(tmp_path / "more.pt"))
    file = save(snapshot(make("mlp")), tmp_path / "mlp.pt")
    with pytest.raises(UserError, match="another network"):
        make("lenet5", pretrained=file)
    with pytest.raises(UserError, match=r"body\.1\.weight is \(64, 3072\) there and \(64, 64\) here"):
        make("mlp", (1, 8, 8), pretrained=file)


def test_a_pickle_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "touched",))

    torch.save({"w": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="cannot be read"):
        make("mlp", pretrained=str(tmp_path / "evil.pt"))
    assert not (tmp_path / "touched").exists()


# --- Net -------------------------------------------------------------------------------------------------------------


def net_of(name: str = "small_cnn", **settings: Any) -> Net:
    partial = functools.partial(getattr(models, name), **SETTINGS[name])
    return Net.of(partial, **{"num_classes": 10, "input_shape": [1, 16, 16], **settings})


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_net_is_a_value() -> None:
    net = net_of("mlp")
    assert net == net_of("mlp", input_shape=(1, 16, 16))
    assert hash(net) == hash(net_of("mlp"))
    assert net != net_of("mlp", num_classes=9)
    assert pickle.loads(pickle.dumps(net)) == net
    assert dict(net.settings) == {"hidden": (64,), "input_shape": (1, 16, 16), "num_classes": 10}


def test_fresh_weights_are_addressed_by_the_seed() -> None:
    net = net_of()
    before = torch.get_rng_state()
    first = net.fresh(1)
    assert torch.equal(before, torch.get_rng_state())
    assert equal(first, net.fresh(1))
    assert not equal(first, net.fresh(2))
    torch.manual_seed(1)
    assert equal(first, snapshot(net()))


def test_load_copies_and_draws_nothing() -> None:
    net = net_of("cifar_resnet18", input_shape=(1, 8, 8))  # has float and integer buffers
    weights = net.fresh(1)
    weights["body.bn1.num_batches_tracked"].fill_(12)
    kept = {name: value.clone() for name, value in weights.items()}
    before = torch.get_rng_state()  # before the first load, which builds the template
    one, two = net.load(weights), net.load(weights)
    assert torch.equal(before, torch.get_rng_state())
    assert equal(snapshot(one), weights)
    with torch.no_grad():
        for value in one.state_dict().values():
            value.add_(1)
    assert equal(weights, kept)
    assert equal(snapshot(two), kept)
    assert equal(snapshot(net.load(weights)), kept)
    assert all(value.requires_grad for value in two.parameters())


def test_load_in_threads() -> None:
    net = net_of("mlp")
    states = [net.fresh(seed) for seed in range(4)]
    found: dict[int, bool] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: equal(snapshot(net.load(states[i])), states[i])}))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_load_says_what_does_not_fit() -> None:
    net = net_of()
    weights = net.fresh(0)
    with pytest.raises(ValueError, match=r"head\.bias on one side only"):
        net.load({name: value for name, value in weights.items() if name != "head.bias"})
    with pytest.raises(ValueError, match=r"extra on one side only"):
        net.load({**weights, "extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"head\.bias is \(9,\), not \(10,\)"):
        net.load({**weights, "head.bias": torch.zeros(9)})


def test_templates_need_no_pretrained_file(tmp_path: Path) -> None:
    weights = make("mlp", (1, 16, 16)).state_dict()
    path = tmp_path / "weights.pt"
    net = net_of("mlp", pretrained=save(weights, path))
    assert equal(net.fresh(5), snapshot(make("mlp", (1, 16, 16), pretrained=str(path))))
    path.unlink()
    assert equal(snapshot(net.load(weights)), weights)


def test_head_names() -> None:
    assert net_of().head_names == ("head.weight", "head.bias")


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"no setting 'widht'.*width"):
        net_of(widht=3)
    with pytest.raises(UserError, match=r"needs a value for 'hidden'"):
        Net.of(models.small_cnn, num_classes=2, input_shape=(1, 8, 8), width=3)
    with pytest.raises(UserError, match=r"model\.hidden must be"):
        net_of("mlp", hidden={"a": 1})
    with pytest.raises(TypeError, match="positional"):
        Net.of(functools.partial(models.mlp, 3))


# --- configs ---------------------------------------------------------------------------------------------------------


def test_every_network_has_a_config() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(SETTINGS) == set(models.__all__) - {"Network"}


@pytest.mark.parametrize("name", SETTINGS)
def test_configs_make_networks(name: str) -> None:
    config = OmegaConf.load(CONFIGS / f"{name}.yaml")
    net = Net.of(instantiate(config), num_classes=3, input_shape=(1, 32, 32))
    settings = dict(net.settings)
    for key, value in SETTINGS[name].items():
        assert settings[key] == (tuple(value) if isinstance(value, list) else value)
    with torch.device("meta"):
        assert isinstance(net(), models.Network)
