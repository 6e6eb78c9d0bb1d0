"""FedLSR: each client regularises itself with a second, mildly changed view of its images."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.federation import World
from fnll.images import Transform, affine
from fnll.lengths import Length
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.methods.fedavg import FedAvg
from fnll.system.notices import warn_once
from fnll.types import Batch, Client, Update
from fnll.weights import Weights

log = logging.getLogger(__name__)

TEMPERATURE = 1 / 3  # T_d of the released code
LEAST = 1e-6  # probabilities are clamped there, as in the released code
DEGREES = 30.0  # the largest rotation, to either side

Classification = Literal["second_softmax", "cross_entropy"]
Divergence = Literal["class_mean", "class_sum"]
Entropy = Literal["second_softmax", "both_views"]


@dataclass(frozen=True, kw_only=True)
class FedLSR(FedAvg):
    """Jiang et al., "Towards Federated Learning against Noisy Labels via Local Self-Regularization", CIKM 2022.

    The network sees two views of each image, with logits f_1 and f_2. Implicit regularisation: their predictions are
    mixed, p = m σ(f_1) + (1 − m) σ(f_2) with m ~ Beta(1, 1) for each batch, and sharpened, p_s ∝ p²; p_s is what the
    label is compared with. Explicit regularisation: γ JS(q_1, q_2) of q_i = σ(f_i / T_d) draws the views together; γ
    grows linearly over the first t_w rounds. FedLSR+ adds λ_e times the entropy of the predictions.

    Symbols: γ `gamma`; t_w `warmup`; T_d `temperature`; λ_e `entropy_weight`. `classification`, `divergence` and
    `entropy` are where the released code departs from these equations; see docs/methods/fedlsr.md.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "a second view of every image, by an augmentation that other methods do not have (or one more of their own)",
    )
    short_run: ClassVar[Mapping[str, Any]] = {"warmup": 3}
    limit_laws: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # sharpened predictions are never plain cross-entropy

    gamma: Annotated[float, Field(ge=0, description="γ weighs the divergence of the two views")]
    warmup: Annotated[int, Field(ge=0, description="t_w, the rounds in which γ grows from 0"), Length()]
    temperature: Annotated[float, Field(gt=0, description="T_d sharpens (below 1) what the views are compared by")]
    entropy_weight: Annotated[float, Field(ge=0, description="λ_e weighs the entropy; 0 is FedLSR, more FedLSR+")]
    second_view: Literal["rotation", "colour", "own"]
    view_values: Literal["normalised", "pixels"]  # what a rotation or a change of colour is applied to
    classification: Classification
    divergence: Divergence
    entropy: Entropy

    def needs(self, world: World) -> int:
        """A round in which γ is not 0."""
        return (1 if self.warmup == 0 else 2) * self.cohort_size

    def train(self, client: Client, weights: Weights) -> Training:
        if self.second_view == "own" and not client.data.transform.augmentations:
            warn_once(
                log, "method.second_view=own repeats the data set's augmentation, and it has none: views are equal"
            )
        views = 2 if self.second_view == "own" else 1
        trained = yield Fit(self.module(client, weights), client, views=views)
        return Update(trained.weights, memory=trained.memory)

    def module(self, client: Client, weights: Weights) -> Classifier:
        facts = {
            "gamma": self.weight(client.t),
            "entropy_weight": self.entropy_weight,
            "temperature": self.temperature,
            "classification": self.classification,
            "divergence": self.divergence,
            "entropy": self.entropy,
        }
        return TwoViews(
            self.net.load(weights),
            self.local,
            client.t,
            second_view=self.second_view,
            view_values=self.view_values,
            **facts,
        )

    def weight(self, t: int) -> float:
        """γ in round t."""
        return self.gamma * t / self.warmup if t < self.warmup else self.gamma


class TwoViews(Classifier):
    """Draws a batch's second view and m, and minimises `lsr_loss`."""

    def __init__(
        self, net: nn.Module, spec: LocalSpec, t: int, *, second_view: str, view_values: str, **facts: Any
    ) -> None:
        super().__init__(net, spec, t, two_view_loss, **facts)
        self.second_view, self.view_values = second_view, view_values

    def draw(self, batch: Batch, client: Client) -> Batch:
        generator = client.generator("second view", batch.step)
        mix = torch.rand((), generator=generator).to(batch.x.device)  # Beta(1, 1) is the uniform distribution
        views = batch.views
        if self.second_view != "own":
            views = (batch.x, self._changed(batch.x, client.data.transform, generator))
        return replace(batch, views=views, extras={"mix": mix})

    def _changed(self, x: Tensor, transform: Transform, generator: torch.Generator) -> Tensor:
        change = rotated if self.second_view == "rotation" else recoloured
        if self.view_values == "normalised":
            return change(x, generator)
        mean, std = (torch.tensor(part, device=x.device).view(-1, 1, 1) for part in (transform.mean, transform.std))
        return (change(x * std + mean, generator) - mean) / std


def two_view_loss(net: nn.Module, batch: Batch, *, gamma: float, entropy_weight: float, **forms: Any) -> Tensor:
    """The objective: `lsr_loss` of the network's logits for the two views of a batch."""
    first, second = batch.views
    return lsr_loss(net(first), net(second), batch.y, batch.extras["mix"], gamma, entropy_weight, **forms)


def lsr_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    labels: Tensor,
    mix: Tensor | float,
    gamma: float,
    entropy_weight: float,
    *,
    temperature: float = TEMPERATURE,
    classification: Classification = "second_softmax",
    divergence: Divergence = "class_mean",
    entropy: Entropy = "second_softmax",
) -> Tensor:
    """L_cls + γ JS(q_1, q_2) + λ_e L_e of two views' logits (B, C) and labels (B,); the released code's by default.

    The released code gives the sharpened probabilities to a cross-entropy that expects logits (`classification:
    second_softmax`), divides the divergence by B·C (`class_mean`), and takes the entropy of σ(q_1) for both views
    (`entropy: second_softmax`). The alternatives are the equations.
    """
    mixed = (mix * logits_1.softmax(dim=1) + (1 - mix) * logits_2.softmax(dim=1)).square()
    sharpened = mixed / mixed.sum(dim=1, keepdim=True)
    if classification == "second_softmax":
        loss = F.cross_entropy(sharpened, labels)
    else:
        loss = F.nll_loss(sharpened.clamp(min=LEAST).log(), labels)
    q_1, q_2 = ((logits / temperature).softmax(dim=1).clamp(LEAST, 1.0) for logits in (logits_1, logits_2))
    middle = ((q_1 + q_2) / 2).log()
    apart = (q_1 * (q_1.log() - middle) + q_2 * (q_2.log() - middle)) / 2
    loss = loss + gamma * (apart.mean() if divergence == "class_mean" else apart.sum(dim=1).mean())
    if entropy_weight:
        twice = entropy == "second_softmax"
        loss = loss + entropy_weight * (_entropy(q_1.softmax(dim=1)) if twice else (_entropy(q_1) + _entropy(q_2)) / 2)
    return loss


def _entropy(probabilities: Tensor) -> Tensor:
    """The mean entropy of rows of probabilities, none of which is 0."""
    return -(probabilities * probabilities.log()).sum(dim=1).mean()


def rotated(x: Tensor, generator: torch.Generator) -> Tensor:
    """A batch rotated by one random angle of up to 30 degrees, zeros in the corners: the released code for MNIST."""
    angle = (torch.rand((), generator=generator) * 2 - 1) * DEGREES
    still = torch.zeros(len(x))
    return affine(x, angle.expand(len(x)), still, still)


def recoloured(x: Tensor, generator: torch.Generator) -> Tensor:
    """A batch flipped, its colours changed or taken away, by one draw for all images: the released code for CIFAR-10.

    Flipped with probability 1/2; with 0.8 brightness, contrast and saturation by factors from [0.2, 1.8] and hue by up
    to 0.2, in random order; grey with 0.2. torchvision's changes of colour end in a clamp to [0, 1].
    """
    from torchvision.transforms import functional as change  # takes seconds to import, and few runs need it

    flip, jitter, grey, *amounts = torch.rand(7, generator=generator).tolist()
    order = torch.randperm(4, generator=generator).tolist()
    if flip < 0.5:
        x = x.flip(3)
    if jitter < 0.8:
        steps = (change.adjust_brightness, change.adjust_contrast, change.adjust_saturation, change.adjust_hue)
        for i in order:
            x = steps[i](x, 0.4 * amounts[i] - 0.2 if i == 3 else 0.2 + 1.6 * amounts[i])
    return change.rgb_to_grayscale(x, num_output_channels=x.shape[1]) if grey < 0.2 and x.shape[1] == 3 else x
