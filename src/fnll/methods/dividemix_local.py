"""What a DivideMix client minimises: MixMatch on a labelled and an unlabelled part of its samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fnll.local import Classifier, Frozen, LocalSpec
from fnll.types import Batch, Client


@dataclass(frozen=True, eq=False)
class Division:
    """The labelled samples' probabilities of being clean, and where in the store the unlabelled images are.

    Only `draw` reads it, never the loss, so clients with different divisions may be trained together: all are equal.
    """

    clean: Tensor  # w, (labelled,)
    rest: Tensor  # (unlabelled,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Division)

    def __hash__(self) -> int:
        return hash(Division)


class MixMatch(Classifier):
    """Algorithm 1, lines 12 to 27, for one network: its fit runs over the labelled samples, with two views of each.

    A batch of unlabelled samples joins each batch; their order begins anew when they are used up. The network that is
    trained guesses in training mode, as in the released codes, its `peer` in evaluation mode.
    """

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        t: int,
        *,
        peer: Frozen,
        division: Division,
        alpha: float,
        temperature: float,
        lambda_u: float,
        ramp: float,
        since: float,
    ) -> None:
        super().__init__(net, spec, t)
        self.peer, self.division = peer, division
        self.alpha, self.temperature = alpha, temperature
        self.lambda_u, self.ramp = lambda_u, ramp
        self.batchwise = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules())
        self.since = since  # how long ago, at the first batch, the ramp began

    def draw(self, batch: Batch, client: Client) -> Batch:
        size, steps = self.spec.batch_size, math.ceil(len(client) / self.spec.batch_size)
        guessed = self._unlabelled(batch, client, size)
        generator = client.generator("mixup", batch.step)
        seed = int(torch.randint(2**62, (), generator=generator))  # torch's Beta takes no generator
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        weight = ramped(self.lambda_u, self.since + batch.step / steps, self.ramp)
        rows = 2 * len(batch.y) + sum(len(view) for view in guessed)
        device = batch.x.device
        extras = {
            "clean": self.division.clean[batch.index].to(batch.x),
            "guessed": guessed,
            "partner": torch.randperm(rows, generator=generator).to(device),
            "share": torch.tensor(max(share, 1 - share), dtype=batch.x.dtype, device=device),
            "lambda_u": torch.tensor(weight, dtype=batch.x.dtype, device=device),
        }
        return replace(batch, extras=extras)

    def _unlabelled(self, batch: Batch, client: Client, size: int) -> tuple[Tensor, ...]:
        """Two views of the unlabelled samples that join a batch; none if there are none."""
        rest = self.division.rest
        if not len(rest):
            return ()
        turn, position = divmod(batch.step, math.ceil(len(rest) / size))
        order = torch.randperm(len(rest), generator=client.generator("unlabelled", turn))
        pixels = client.data.images.take(rest[order[position * size : (position + 1) * size]]).to(client.device)
        return tuple(
            client.data.transform.augmented(pixels, client.generator("unlabelled", "augment", batch.step, view))
            for view in range(2)
        )

    def loss(self, batch: Batch) -> Tensor:
        extras, guessed = batch.extras, batch.extras["guessed"]
        with torch.no_grad():
            first, second, *guesses = self._answers(self.net, [*batch.views, *guessed])
            targets = [self._refined(batch, (first + second) / 2)] * 2
            if guessed:
                guesses += self._answers(self.peer, guessed)
                targets += [sharpen(torch.stack(guesses).mean(dim=0), self.temperature)] * 2
        inputs, labels = torch.cat([*batch.views, *guessed]), torch.cat(targets)
        share, partner = extras["share"], extras["partner"]
        mixed = share * labels + (1 - share) * labels[partner]
        logits = self.net(share * inputs + (1 - share) * inputs[partner])
        labelled = 2 * len(batch.y)
        return semi_loss(logits[:labelled], mixed[:labelled], logits[labelled:], mixed[labelled:], extras["lambda_u"])

    def _answers(self, net: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
        """A network's probabilities for each view; in one pass, unless it normalises by the batch that it sees."""
        if self.batchwise:
            return [net(view).softmax(dim=1) for view in views]
        return list(net(torch.cat(list(views))).softmax(dim=1).split([len(view) for view in views]))

    def _refined(self, batch: Batch, guess: Tensor) -> Tensor:
        """Targets of labelled samples: w y + (1 − w) p, sharpened, p the network's own mean over both views."""
        clean = batch.extras["clean"][:, None]
        given = (batch.y[:, None] == torch.arange(guess.shape[1], device=guess.device)).to(guess)
        return sharpen(clean * given + (1 - clean) * guess, self.temperature)


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """p^(1/T), divided by its sum over the classes (the last dimension); equation 7 of the paper."""
    powers = p ** (1 / temperature)
    return powers / powers.sum(dim=-1, keepdim=True)


def semi_loss(
    logits_x: Tensor, targets_x: Tensor, logits_u: Tensor, targets_u: Tensor, lambda_u: float | Tensor
) -> Tensor:
    """L_x + λ_u L_u + L_reg (equations 9 to 12) of labelled and unlabelled samples; `lambda_u` is already ramped up.

    L_x is cross-entropy with soft targets, L_u the mean squared difference of all probabilities, and L_reg the distance
    KL(uniform‖mean prediction) over both kinds of samples together, with weight 1 (λ_r). Without unlabelled samples
    L_u is 0.
    """
    log_probs = F.log_softmax(torch.cat([logits_x, logits_u]), dim=1)
    fit = -(targets_x * log_probs[: len(logits_x)]).sum(dim=1).mean()
    classes = logits_x.shape[1]
    log_mean = torch.logsumexp(log_probs, dim=0) - math.log(len(log_probs))
    balance = -log_mean.mean() - math.log(classes)
    if not len(logits_u):
        return fit + balance
    agreement = (log_probs[len(logits_x) :].exp() - targets_u).square().mean()
    return fit + lambda_u * agreement + balance


def ramped(lambda_u: float, since: float, length: float) -> float:
    """λ_u, reached linearly `length` after the ramp began."""
    return lambda_u * min(max(since / length, 0.0), 1.0) if length > 0 else lambda_u


def warmup_loss(net: nn.Module, batch: Batch, penalty: bool) -> Tensor:
    """Cross-entropy; with `penalty` minus the entropy of predictions (equation 6), against confidence."""
    logits = net(batch.x)
    loss = F.cross_entropy(logits, batch.y)
    if not penalty:
        return loss
    log_probs = F.log_softmax(logits, dim=1)
    return loss + (log_probs.exp() * log_probs).sum(dim=1).mean()
