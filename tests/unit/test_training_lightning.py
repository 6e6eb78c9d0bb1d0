"""The part of Lightning that local training honours, and the refusal by name of the rest."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from by_hand import ByHand
from fnll.errors import UserError
from fnll.executors import Serial
from fnll.local import Classifier, Fit
from fnll.methods.fedavg import FedAvg
from fnll.testing import TinyWorld, play, same, tiny_local
from fnll.training import IGNORED, fit
from fnll.types import CPU, Update

WORLD = TinyWorld()


def client(t=0):
    return WORLD.scenario.client(0, t=t, memory={}, labels=None, seed=3, device=CPU)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


class Scheduled(Classifier):
    """Halves its rate after every epoch, or every step; notes the rates it stepped with."""

    form = "dict"

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
        self.rates, self.optimizer = [], optimizer
        return {
            "dict": {"optimizer": optimizer, "lr_scheduler": scheduler},
            "lists": ([optimizer], [scheduler]),
            "step": {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}},
            "second": ([optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 2}]),
            "plateau": {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer)},
            "monitor": {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}},
            "hour": {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "hour"}},
            "none": {"lr_scheduler": scheduler},
            "two": [optimizer, super().configure_optimizers()],
        }[self.form]

    def training_step(self, batch, index):
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        return super().training_step(batch, index)


@pytest.mark.parametrize(
    ("form", "rates"),
    [
        # 12 samples in batches of 5 are 3 steps an epoch, two epochs at the rate 0.1
        ("dict", [0.1] * 3 + [0.05] * 3),
        ("lists", [0.1] * 3 + [0.05] * 3),
        ("step", [0.1 / 2**i for i in range(6)]),
        ("second", [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]),
    ],
)
def test_schedulers_in_lightnings_usual_forms(form, rates):
    module = Scheduled(network(), tiny_local())
    module.form = form
    fit(Fit(module, client()))
    assert module.rates == pytest.approx(rates)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("plateau", "a scheduler with ReduceLROnPlateau is not supported"),
        ("monitor", "a scheduler with monitor is not supported"),
        ("hour", "interval is epoch or step, got 'hour'"),
        ("none", r"Scheduled\.configure_optimizers returned"),
        ("two", "has 2 optimisers"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(form, message):
    module = Scheduled(network(), tiny_local())
    module.form = form
    with pytest.raises(UserError, match=message):
        fit(Fit(module, client()))


class ByHandScheduled(ByHand):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [StepLR(optimizer, 1)]


@pytest.mark.parametrize("settings", [{"clip_norm": 0.1}, {"lr_decay": 0.5}, {"clip_norm": 0.05, "lr_decay": 0.9}])
def test_manual_optimisation_clips_and_decays_as_the_automatic_one(settings):
    spec = tiny_local(**settings)
    plain = fit(Fit(Classifier(network(), tiny_local(), t=2), client())).weights
    automatic = fit(Fit(Classifier(network(), spec, t=2), client())).weights
    assert not same(automatic, plain), "the settings matter"
    assert same(automatic, fit(Fit(ByHand(network(), spec, t=2), client())).weights)


def test_schedulers_of_manual_optimisation_are_refused():
    with pytest.raises(UserError, match="nobody steps its schedulers"):
        fit(Fit(ByHandScheduled(network(), tiny_local()), client()))


class Forgetful(Classifier):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=self.spec.lr)


def test_a_module_that_forgets_the_decay_is_refused_by_name():
    fit(Fit(Forgetful(network(), tiny_local(lr_decay=1.0), t=5), client()))
    fit(Fit(Forgetful(network(), tiny_local(lr_decay=0.9), t=0), client()))
    with pytest.raises(UserError, match=r"Forgetful\.configure_optimizers ignores local\.lr_decay=0\.9: .*_for"):
        fit(Fit(Forgetful(network(), tiny_local(lr_decay=0.9), t=5), client()))


@pytest.mark.parametrize("hook", IGNORED)
def test_hooks_that_nobody_would_call_are_refused_by_name(hook):
    kind = type("Hooked", (Classifier,), {hook: lambda self, *args, **kwargs: None})
    with pytest.raises(UserError, match=f"Hooked overrides {hook}, which local training does not call"):
        fit(Fit(kind(network(), tiny_local()), client()))


class Keeps(FedAvg):
    """Two trainings in one job, whose optimisers are kept apart."""

    def train(self, client, weights):
        module = self.module(client, weights=weights)
        first = yield Fit(module, client)
        second = yield Fit(module, client, ("second",))
        return Update(second.weights, memory={**first.memory, **second.memory})


def test_every_training_of_a_job_keeps_its_own_optimiser():
    method = Keeps(**WORLD.shared(keep_optimizer=True, momentum=0.9))
    last = play(method, WORLD, rounds=2, executor=Serial(WORLD.scenario))[-1]
    kept = next(iter(last.clients.values())).memory
    assert set(kept) == {"optimizer", "optimizer/second"}
    assert not same(kept["optimizer"], kept["optimizer/second"])
