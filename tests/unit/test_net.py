"""Copies of networks: whatever a network is made of, a loaded one shares nothing and holds exactly the weights."""

import copy
import threading

import pytest
import torch
from torch import nn

from fnll.models import cifar_resnet18, cnn4conv, lenet5, mlp, small_cnn
from fnll.net import Net, Template
from fnll.system.allocator import keep_freed_memory
from fnll.testing import same
from fnll.weights import all_finite, snapshot


class Odd(nn.Module):
    """A stray tensor in two places, a frozen parameter, a buffer in no state, and settings of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.inner.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0, 3.0]), persistent=False)
        self.stray = torch.ones(2)
        self.again = [self.stray]
        self.settings = {"names": ["a", "b"], "shape": (1, 2)}

    def forward(self, x):
        return self.inner(x) * self.scale + self.stray


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class Doubling(nn.Linear):
    """Has a way of its own to load a state."""

    def _load_from_state_dict(self, state, prefix, *rest):
        super()._load_from_state_dict({name: 2 * value for name, value in state.items()}, prefix, *rest)


def local_network() -> nn.Module:
    class Local(nn.Module):  # pickle cannot find it
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)
            self.f = lambda x: 2 * x

        def forward(self, x):
            return self.f(self.layer(x))

    return Local()


def shifted(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value + 1 for name, value in snapshot(network).items()}


def plainly(network: nn.Module, weights: dict[str, torch.Tensor]) -> nn.Module:
    made = copy.deepcopy(network)
    made.load_state_dict(weights)
    return made


BUILDERS = {
    "mlp": lambda: mlp(num_classes=3, input_shape=(1, 8, 8), hidden=(4,)),
    "small_cnn": lambda: small_cnn(num_classes=3, input_shape=(1, 8, 8), width=2, hidden=4),
    "lenet5": lambda: lenet5(num_classes=3, input_shape=(3, 32, 32)),
    "cnn4conv": lambda: cnn4conv(num_classes=3, input_shape=(3, 16, 16), width=2),
    "cifar_resnet18": lambda: cifar_resnet18(num_classes=3, input_shape=(3, 8, 8)),
    "odd": Odd,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_filled_template_is_the_deep_copy_with_the_state_loaded(name: str) -> None:
    network = BUILDERS[name]()
    template, weights = Template(network), shifted(network)
    assert template.structure is not None
    made, expected = template.filled(weights), plainly(network, weights)
    assert same(snapshot(made), snapshot(expected))
    assert [(n, p.requires_grad) for n, p in made.named_parameters()] == [
        (n, p.requires_grad) for n, p in expected.named_parameters()
    ]
    assert [(n, type(m)) for n, m in made.named_modules()] == [(n, type(m)) for n, m in expected.named_modules()]
    assert all(value.is_contiguous() and value.is_leaf for value in made.parameters())
    shape = (2, 2) if name == "odd" else (2, *{"mlp": (1, 8, 8), "small_cnn": (1, 8, 8)}.get(name, (3, 32, 32)))
    if name in ("mlp", "small_cnn", "lenet5", "odd"):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(made(x), expected(x))


def test_copies_share_no_memory() -> None:
    network = Odd()
    template, weights = Template(network), shifted(network)
    one, two = template.filled(weights), template.filled(weights)
    places = [
        value.data_ptr()
        for holder in (network, one, two)
        for value in (*holder.parameters(), *holder.buffers(), holder.stray)
    ]
    assert len(set(places)) == len(places)
    assert not set(places) & {value.data_ptr() for value in weights.values()}
    assert one.settings == network.settings
    assert one.settings["names"] is not network.settings["names"]
    assert one.again[0] is one.stray  # one object stays one object


@pytest.mark.parametrize("network", [Tied(), nn.Sequential(Doubling(2, 2)), local_network()], ids=type)
def test_what_cannot_be_copied_fast_is_copied_the_plain_way(network: nn.Module) -> None:
    template, weights = Template(network), shifted(network)
    assert template.structure is None
    assert same(snapshot(template.filled(weights)), snapshot(plainly(network, weights)))


def test_a_hook_on_loading_is_honoured() -> None:
    network, heard = nn.Sequential(nn.Linear(2, 2)), []
    network.register_load_state_dict_post_hook(lambda module, keys: heard.append(module))
    Template(network).filled(snapshot(network))
    assert len(heard) == 1


def test_weights_of_another_type_are_converted() -> None:
    network = nn.Linear(2, 2)
    weights = {name: value.double() for name, value in shifted(network).items()}
    made = Template(network).filled(weights)
    assert made.weight.dtype == torch.float32
    assert torch.equal(made.weight.double(), weights["weight"])


def test_threads_do_not_meet() -> None:
    net = Net.of(small_cnn, num_classes=3, input_shape=(1, 8, 8), width=2, hidden=4)
    states = [net.fresh(seed) for seed in range(8)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            made = net.load(states[i])
            if not same(snapshot(made), states[i]):
                wrong.append(i)
            with torch.no_grad():
                for value in made.parameters():
                    value.zero_()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 7, 999])
def test_one_number_that_is_not_finite_is_found(bad: float, place: int) -> None:
    state = {"counter": torch.tensor(3), "none": torch.zeros(0), "w": torch.randn(1000), "h": torch.randn(8).half()}
    assert all_finite(state)
    state["w"][place] = bad
    assert not all_finite(state)


def test_the_allocator_is_asked_once() -> None:
    assert keep_freed_memory() is keep_freed_memory()


def test_filters_lie_channels_last_and_states_do_not():
    net = Net.of(lenet5, num_classes=10, input_shape=(3, 32, 32))
    loaded = net.load(net.fresh(0))
    filters = [value for value in loaded.parameters() if value.ndim == 4]
    assert len(filters) == 2
    for value in filters:
        assert value.is_contiguous(memory_format=torch.channels_last)
        assert not value.is_contiguous()
    assert all(value.is_contiguous() for value in snapshot(loaded).values())
