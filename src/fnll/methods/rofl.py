"""RoFL: class centroids, exchanged with the server, decide which given labels a client may trust."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Classifier, Fit, LocalSpec, Training
from fnll.methods.fedavg import FedAvg
from fnll.models import Network
from fnll.net import batch_dependent
from fnll.seeding import torch_rng
from fnll.tools import evaluating, in_order
from fnll.types import Batch, Client, State, Update
from fnll.weights import Weights, mean

CentroidLoss = Literal["without_gradient", "sum", "mean"]


@dataclass(frozen=True)
class CentroidState(State):
    """The global weights, and f_G (C, d); a row of zeros belongs to a class that no participant has held so far."""

    centroids: Tensor


@dataclass(frozen=True, kw_only=True)
class RoFL(FedAvg):
    """Yang et al., "Robust Federated Learning with Noisy Labels", IEEE Intelligent Systems 2022 (arXiv 2012.01700).

    A client keeps the samples of each batch with the smallest cross-entropy and calls one of them confident if its
    label is that of the centroid f_k,c nearest to its feature F(x). It minimises L_c + λ_cen L_cen + λ_e L_e: L_c is
    cross-entropy with the label of a confident sample and, from round T_pl on, the global model's answer ŷ for the
    others; L_cen = Σ ‖F(x) − f_k,y‖² over confident samples; L_e the entropy of the predictions. Centroids follow the
    kept features from batch to batch (`update_centroids`), and the server merges them (`merge_centroids`).

    Symbols: T_pl `pseudo_from`; λ_cen `centroid_weight`, growing as t/T_pl before round T_pl; λ_e `entropy_weight`.

    The authors released no code; FedCorr and FedNoRo ran an unofficial one, in which L_cen has no gradient and so does
    nothing: `centroid_loss: without_gradient`. See docs/methods/rofl.md.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "the mean features of every class (C × d numbers) of each participant, in every round",
        "one extra forward pass over participants' data in the first round and after T_pl",
    )
    short_run: ClassVar[dict[str, Any]] = {"pseudo_from": 3, "forget_ramp": 2}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {
        "clients of one size, nothing forgotten, no pseudo-labels, λ_cen = λ_e = 0": {
            "pseudo_from": 10**9,
            "forget_rate": 0.0,
            "centroid_weight": 0.0,
            "entropy_weight": 0.0,
        }
    }

    pseudo_from: Annotated[int, Field(ge=0, description="T_pl, the first round with pseudo-labels"), Length()]
    forget_rate: Annotated[float, Field(ge=0, lt=1, description="the share of each batch that is left out")]
    forget_ramp: Annotated[int, Field(ge=0, description="rounds in which the forget rate grows from 0"), Length()]
    centroid_weight: Annotated[float, Field(ge=0, description="λ_cen weighs the distance to the centroids")]
    centroid_loss: CentroidLoss
    entropy_weight: Annotated[float, Field(ge=0, description="λ_e weighs the entropy of predictions")]
    weighting: Literal["uniform", "samples"]  # of clients' models in the average
    eval_augment: bool  # pseudo-labels and first centroids of augmented images
    eval_batch_size: Annotated[int, Field(ge=1, description="samples in one forward pass")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.net.head_names:
            raise UserError(
                "RoFL needs a network that gives features (an attribute `head` on top of `features(x)`), and this one "
                "has none; choose another model"
            )

    def needs(self, world: World) -> int:
        """The rounds before T_pl, and one with pseudo-labels."""
        return (self.pseudo_from + 1) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> CentroidState:
        start = super().init(fed, weights).weights
        _, width = start["head.weight"].shape
        return CentroidState(start, torch.zeros(fed.num_classes, width))

    def round(self, state: CentroidState, fed: Federation) -> CentroidState:
        fed.record(stage="warm-up" if fed.t < self.pseudo_from else "pseudo-labels")
        cohort = self.select(state, fed)
        updates = fed.map(self.train, cohort, weights=state.weights, centroids=state.centroids)
        sent = torch.stack([torch.as_tensor(update.report["centroids"]) for update in updates])
        return replace(state, weights=self.aggregate(state, updates, fed), centroids=self._merged(state, sent, fed))

    def aggregate(self, state: State, updates: list[Update], fed: Federation) -> Weights:
        if self.weighting == "samples":
            return super().aggregate(state, updates, fed)
        return mean([update.weights for update in updates if update.weights is not None])

    def _merged(self, state: CentroidState, sent: Tensor, fed: Federation) -> Tensor:
        """f_G after a round; of a class that was unknown, clients' centroids are compared with a random one."""
        noise = torch.randn(state.centroids.shape, generator=torch_rng(fed.seed("centroids")))
        merged = merge_centroids(torch.where(_known(state.centroids)[:, None], state.centroids, noise), sent)
        return torch.where(_known(sent).any(dim=0)[:, None], merged, state.centroids)

    # The client

    def train(self, client: Client, weights: Weights, centroids: Tensor) -> Training:
        net = self.net.load(weights)
        assert isinstance(net, Network)
        relabels = client.t >= self.pseudo_from
        unknown = ~_known(centroids)
        answers = None
        if relabels or bool(unknown[client.data.y].any()):
            features, logits = self._seen(net.to(client.device), client)
            own = class_means(features, client.data.y, len(centroids))
            centroids = torch.where(unknown[:, None], own, centroids)
            answers = logits.argmax(dim=1)
        module = Centroids(
            net,
            self.local,
            client.t,
            centroids=centroids,
            labels=client.data.y,
            answers=answers if relabels else None,
            forget_rate=self.forgetting(client.t),
            centroid_weight=self.pull(client.t),
            centroid_loss=self.centroid_loss,
            entropy_weight=self.entropy_weight,
        )
        trained = yield Fit(module, client)
        return Update(
            trained.weights,
            report={"centroids": module.centroids.cpu()},
            trace={"clean": module.trusted.cpu()},
            memory=trained.memory,
        )

    def forgetting(self, t: int) -> float:
        """The share of a batch that is left out in round t: from 0 to the full rate in `forget_ramp` rounds."""
        return self.forget_rate * t / max(1, self.forget_ramp - 1) if t < self.forget_ramp else self.forget_rate

    def pull(self, t: int) -> float:
        """λ_cen in round t."""
        return self.centroid_weight * t / self.pseudo_from if t < self.pseudo_from else self.centroid_weight

    @torch.no_grad()
    def _seen(self, net: Network, client: Client) -> tuple[Tensor, Tensor]:
        """Features and logits of all the client's samples under the network that it received, on the CPU."""
        shuffled = batch_dependent(net)
        with evaluating(net):
            walked = client.scan(self.eval_batch_size, augment=self.eval_augment, shuffled=shuffled)
            parts = [net.features(batch.x) for batch in walked]
            seen = torch.cat(parts).float().cpu(), torch.cat([net.head(part) for part in parts]).cpu()
        return (in_order(seen[0]), in_order(seen[1])) if shuffled else seen


class Centroids(Classifier):
    """The local objective. Centroids move with every batch, so one client is trained at a time."""

    net: Network
    centroids: Tensor  # f_k, (C, d)
    targets: Tensor  # (n,): ŷ, or the given labels before T_pl
    trusted: Tensor  # (n,): samples whose given label counted in the last epoch

    def __init__(
        self,
        net: nn.Module,
        spec: LocalSpec,
        t: int,
        *,
        centroids: Tensor,
        labels: Tensor,
        answers: Tensor | None,
        forget_rate: float,
        centroid_weight: float,
        centroid_loss: CentroidLoss,
        entropy_weight: float,
    ) -> None:
        super().__init__(net, spec, t)
        self.register_buffer("centroids", centroids)
        self.register_buffer("targets", labels if answers is None else answers)
        self.register_buffer("trusted", torch.zeros(len(labels), dtype=torch.bool))
        self.forget_rate, self.entropy_weight = forget_rate, entropy_weight
        self.centroid_weight, self.centroid_loss = centroid_weight, centroid_loss

    def training_step(self, batch: Batch, index: int) -> Tensor:
        features = self.net.features(batch.x)
        logits = self.net.head(features)
        kept = small_losses(F.cross_entropy(logits.detach(), batch.y, reduction="none"), self.forget_rate)
        features, logits, labels = features[kept], logits[kept], batch.y[kept]
        seen = features.detach().to(self.centroids.dtype)
        confident = nearest_centroid(self.centroids, seen) == labels
        rows = batch.index.to(labels.device)
        targets = torch.where(confident, labels, self.targets[rows[kept]])
        loss = F.cross_entropy(logits, targets)
        if self.centroid_weight and self.centroid_loss != "without_gradient":
            apart = (features - self.centroids[labels]).square() * confident[:, None]
            loss = loss + self.centroid_weight * (apart.sum() if self.centroid_loss == "sum" else apart.mean())
        if self.entropy_weight:
            log_probs = logits.log_softmax(dim=1)
            loss = loss - self.entropy_weight * (log_probs.exp() * log_probs).sum(dim=1).mean()
        self.centroids = update_centroids(self.centroids, seen, labels)
        self.trusted[rows] = False
        self.trusted[rows[kept]] = targets == labels
        return loss


def small_losses(losses: Tensor, forget_rate: float) -> Tensor:
    """Positions of the ⌊(1 − forget_rate) B⌋ smallest losses, at least one, in the order of the batch.

    The order matters to rounding only: with nothing forgotten, the loss is FedAvg's bit for bit.
    """
    count = max(1, int((1 - forget_rate) * len(losses) + 1e-9))
    return losses.argsort(stable=True)[:count].sort().values


def nearest_centroid(centroids: Tensor, features: Tensor) -> Tensor:
    """ỹ = argmax_c cos(f_c, F(x)) of each feature, (B,); rows of zeros are no candidates."""
    cosines = F.normalize(features, dim=1) @ F.normalize(centroids, dim=1).T
    return cosines.masked_fill(~_known(centroids), -torch.inf).argmax(dim=1)


def update_centroids(old: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """f_c ← (1 − s²) f_c + s² f̂_c with f̂_c the mean feature of class c and s = cos(f_c, f̂_c); absent classes stay.

    `old` (C, d), `features` (B, d), `labels` (B,).
    """
    means = class_means(features, labels, len(old))
    share = F.cosine_similarity(old, means, dim=1).square()[:, None]
    return (1 - share) * old + share * means


def merge_centroids(server: Tensor, clients: Tensor) -> Tensor:
    """f_G,c = Σ_k s_k f_k,c / Σ_k s_k with the signed cosines s_k = cos(f_G,c, f_k,c); (C, d) and (K, C, d).

    Rows of zeros are clients without that class. Where cosines cancel, clients that have the class count equally; a
    class that nobody has keeps the server's centroid.
    """
    cosines = F.cosine_similarity(server[None], clients, dim=2)
    total, held = cosines.sum(dim=0), _known(clients)
    cancelled = total.abs() <= 1e-6 * cosines.abs().sum(dim=0)
    equal = held.to(cosines.dtype) / held.sum(dim=0).clamp(min=1)
    shares = torch.where(cancelled, equal, cosines / torch.where(cancelled, 1, total))
    return torch.where(held.any(dim=0)[:, None], torch.einsum("kc,kcd->cd", shares, clients), server)


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean feature of each class, (C, d); zeros for absent ones."""
    members = F.one_hot(labels, classes).to(features.dtype)
    return members.T @ features / members.sum(dim=0).clamp(min=1)[:, None]


def _known(centroids: Tensor) -> Tensor:
    return centroids.ne(0).any(dim=-1)
