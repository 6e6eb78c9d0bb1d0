"""FedRN: a client trains on the samples that its own last model and those of reliable neighbours vote to be clean."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fnll.errors import UserError
from fnll.federation import Federation, World
from fnll.lengths import Length
from fnll.local import Asking, Classifier, Fit, LocalSpec, Predict, Split, Trained, Training
from fnll.methods.fedavg import FedAvg
from fnll.methods.fedrn_reliability import (
    NEUTRAL,
    cosines,
    ensemble,
    expertise,
    most_reliable,
    reliability,
    shares,
)
from fnll.models import Network
from fnll.seeding import derive, torch_rng
from fnll.system.notices import warn_once
from fnll.tools import TwoComponents, evaluating, min_max
from fnll.types import Batch, Client, Each, State, Update
from fnll.weights import Weights

log = logging.getLogger(__name__)

RECORD_EVERY = 50  # rounds between two records of everyone's accuracy and similarity
ALIKE = 256  # clients whose pairs are recorded: N² numbers of 1,000 clients would be 6 MB of diagnostics


@dataclass(frozen=True)
class NeighbourState(State):
    """What the server knows of clients that have taken part: their last models (the only copies) and their reports."""

    seed: int  # of the noise image x̃, which every client makes for itself, and of models never trained
    locals: dict[int, Weights] = field(default_factory=dict)  # Θ_n
    accuracy: dict[int, float] = field(default_factory=dict)  # Acc(n): share of its (noisy) labels that Θ_n predicts
    output: dict[int, Tensor] = field(default_factory=dict)  # p(x̃; Θ_n), (C,), in `sim_space`


class Standing(NamedTuple):
    """All clients that hold data, as the server sees them before a round; rows are in the order of `clients`."""

    clients: list[int]
    expertise: Tensor  # (N,)
    outputs: Tensor  # (N, C): answers to the noise image
    accuracy: Tensor  # (N,), NaN where unknown


class Panel(NamedTuple):
    """Who votes on a target's samples besides itself, and R(c, n) of the target and of those."""

    neighbours: list[int]
    scores: list[float]


@dataclass(frozen=True, kw_only=True)
class FedRN(FedAvg):
    """Kim et al., "FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated Learning", CIKM 2022.

    After a warm-up with FedAvg, the server scores for each participant c every other client n by
    R(c, n) = α Exp(n) + (1 − α) Sim(c, n), sends it the k best ones' last models, and c trains the global model only on
    samples whose probability of a small loss, averaged over its own last model and the (head-tuned) neighbours with
    weights ∝ R, exceeds 1/2 (algorithm 1).

    Symbols: k `k`; α `alpha`; e `local.epochs`. The other settings choose between paper and released code, or are the
    ablations of tables 5 (`finetune_epochs` 0) and 9 (`neighbours` random); docs/methods/fedrn.md explains each.
    """

    privileges: ClassVar[tuple[str, ...]] = (
        "k other clients' models, sent to every participant in every round after the warm-up",
        "every client's training accuracy, and its answer to one noise image, known to the server",
    )
    short_run: ClassVar[dict[str, Any]] = {"warmup": 3}
    limit_laws: ClassVar[dict[str, dict[str, Any]]] = {"an endless warm-up is FedAvg": {"warmup": 10**9}}

    warmup: Annotated[int, Field(ge=0, description="rounds of plain FedAvg before samples are selected"), Length()]
    k: Annotated[int, Field(ge=0, description="neighbours that vote; 0 leaves the client's own model alone")]
    alpha: Annotated[float, Field(ge=0, le=1, description="α weighs expertise against similarity")]
    neighbours: Literal["reliable", "random"]
    finetune_epochs: Annotated[int, Field(ge=0, description="epochs for neighbours' heads; 0 is off")]
    sim_space: Literal["softmax", "logits"]
    untrained_model: Literal["global", "random"]
    eval_augment: bool
    eval_batch_size: Annotated[int, Field(ge=1, description="samples in one forward pass")]
    body_mode: Literal["eval", "train"]
    loss_scale: Literal["raw", "min_max"]
    gmm_reg_covar: Annotated[float, Field(ge=0, description="added to the mixture's variances")]
    gmm_tol: Annotated[float, Field(ge=0, description="the gain below which the mixture's EM stops")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune_epochs and not self.net.head_names:
            raise UserError(
                "FedRN fine-tunes the head of its neighbours' networks, and this network has none (an attribute `head` "
                "on top of `features(x)`); type method.finetune_epochs=0 or choose another model"
            )

    def needs(self, world: World) -> int:
        """The warm-up, and a round in which samples are selected."""
        return (self.warmup + 1) * self.cohort_size

    # The server

    def init(self, fed: Federation, weights: Weights | None = None) -> NeighbourState:
        rounds = fed.budget // self.cohort_size
        if self.warmup >= rounds:
            log.warning("method.warmup=%d covers all %d rounds: this run is FedAvg", self.warmup, rounds)
        return NeighbourState(super().init(fed, weights).weights, seed=fed.seed("fedrn"))

    def models(self, state: NeighbourState) -> Iterator[tuple[int, NeighbourState]]:
        """Θ_n of every client that has taken part."""
        return ((n, replace(state, weights=weights)) for n, weights in sorted(state.locals.items()))

    def round(self, state: NeighbourState, fed: Federation) -> NeighbourState:
        cohort = self.select(state, fed)
        panels = self._panels(state, fed, cohort) if fed.t >= self.warmup else []
        fed.record(stage="selection" if panels else "warm-up")
        votes: dict[str, Any] = {}
        if panels:
            votes = {
                "peers": Each([[self._local(state, n) for n in panel.neighbours] for panel in panels]),
                "shares": Each([shares(panel.scores) for panel in panels]),
            }
        updates = fed.map(self.train, cohort, weights=state.weights, seed=state.seed, **votes)
        return replace(
            state,
            weights=self.aggregate(state, updates, fed),
            locals=state.locals | {u.client: u.weights for u in updates if u.weights is not None},
            accuracy=state.accuracy | {u.client: float(u.report["accuracy"]) for u in updates},
            output=state.output | {u.client: torch.as_tensor(u.report["output"]) for u in updates},
        )

    def _panels(self, state: NeighbourState, fed: Federation, cohort: Sequence[int]) -> list[Panel]:
        """R_c(k) of definition 4.1 for each target c of the cohort."""
        standing = self._standing(state, fed)
        places = {n: i for i, n in enumerate(standing.clients)}
        targets = [places[c] for c in cohort]
        similar = cosines(standing.outputs, targets)
        panels = [self._panel(standing, fed, target, row) for target, row in zip(targets, similar, strict=True)]
        fed.record(
            neighbours={c: panel.neighbours for c, panel in zip(cohort, panels, strict=True)},
            scores={c: panel.scores for c, panel in zip(cohort, panels, strict=True)},
        )
        if (fed.t - self.warmup) % RECORD_EVERY == 0:
            fed.record(
                accuracy=dict(zip(standing.clients, standing.accuracy.tolist(), strict=True)),
                expertise=dict(zip(standing.clients, standing.expertise.tolist(), strict=True)),
                # rows and columns: the clients of `accuracy`, in order; of many the first
                similarity=cosines(standing.outputs[:ALIKE]).numpy().round(4),
            )
        return panels

    def _panel(self, standing: Standing, fed: Federation, target: int, similar: Tensor) -> Panel:
        clients = standing.clients
        scores = reliability(target, standing.expertise, similar, self.alpha)
        if self.k >= len(clients):
            warn_once(
                log, f"method.k={self.k} is more than there are other clients; all {len(clients) - 1} of them vote"
            )
        k = min(self.k, len(clients) - 1)
        if self.neighbours == "random":
            others = [i for i in range(len(clients)) if i != target]
            chosen = (
                sorted(fed.rng("neighbours", clients[target]).choice(others, k, replace=False).tolist()) if k else []
            )
        else:
            chosen = most_reliable(scores, target, k)
        return Panel([clients[i] for i in chosen], [float(scores[i]) for i in [target, *chosen]])

    def _standing(self, state: NeighbourState, fed: Federation) -> Standing:
        """Expertise and similarity of all clients; `untrained_model` says what counts for those never trained."""
        clients = fed.inhabited
        unknown = torch.nan if self.untrained_model == "global" else NEUTRAL
        accuracy = torch.tensor([state.accuracy.get(n, unknown) for n in clients], dtype=torch.float64)
        outputs = dict(state.output)
        if untrained := [n for n in clients if n not in outputs]:
            if self.untrained_model == "global":
                answer = self.answer(self.net.load(state.weights), state.seed, fed.input_shape)
                outputs |= dict.fromkeys(untrained, answer)
            else:
                outputs |= {
                    n: torch.rand(fed.num_classes, generator=torch_rng(state.seed, "output", n)) for n in untrained
                }
        return Standing(clients, expertise(accuracy), torch.stack([outputs[n] for n in clients]), accuracy)

    def _local(self, state: NeighbourState, n: int) -> Weights:
        return state.locals[n] if n in state.locals else self._untrained(n, state.weights, state.seed)

    def _untrained(self, n: int, weights: Weights, seed: int) -> Weights:
        """The model of a client that was never sampled: the global one, or in the released code one of its own."""
        return weights if self.untrained_model == "global" else self.net.fresh(derive(seed, "untrained", n))

    # The client

    def train(
        self, client: Client, weights: Weights, seed: int, peers: Sequence[Weights] = (), shares: Sequence[float] = ()
    ) -> Training:
        """Train on the clean set (on everything in the warm-up, when nobody votes) and report on all samples."""
        keep = torch.ones(len(client), dtype=torch.bool)
        if shares:
            own = client.memory["net"] if "net" in client.memory else self._untrained(client.id, weights, seed)
            assert isinstance(own, dict)
            keep = yield from self.clean_set(client, own, peers, shares)
        module = self.module(client, weights=weights)
        trained: Trained = yield Fit(module, client.subset(keep))
        report = yield from self.standing(client, module.net, seed)
        return Update(
            trained.weights,
            report=report,
            trace={"clean": keep},
            memory={**trained.memory, "net": trained.weights},  # the very object that is uploaded
        )

    def standing(self, client: Client, net: nn.Module, seed: int) -> Asking[dict[str, Tensor | float]]:
        """What the server asks of a trained network: Acc(n) on the client's own labels, and p(x̃; Θ)."""
        logits = yield Predict(net, client.reseeded("expertise"), self.eval_augment, self.eval_batch_size)
        accuracy = float((logits.argmax(1) == client.data.y).double().mean())
        shape = client.data.transform.shape(client.data.images.shape)
        return {"accuracy": accuracy, "output": self.answer(net, seed, shape)}

    def clean_set(
        self, client: Client, own: Weights, peers: Sequence[Weights], shares: Sequence[float]
    ) -> Asking[Tensor]:
        """S_c (equation 8) as a mask; the auxiliary set that tunes the neighbours' heads is equation 9."""
        posteriors = [(yield from self.posterior(self.net.load(own), client.reseeded("own")))]
        auxiliary = client.subset(_or_all(posteriors[0] > 0.5))
        for i, peer in enumerate(peers):
            net = self.net.load(peer)
            if self.finetune_epochs:
                spec = replace(self.local, epochs=self.finetune_epochs, keep_optimizer=False)
                tuning = HeadTuning(net, spec, client.t, body_mode=self.body_mode)
                yield Fit(tuning, auxiliary, ("head",))  # all neighbours see the same batches
            posteriors.append((yield from self.posterior(net, client.reseeded("peer", i))))
        return _or_all(ensemble(torch.stack(posteriors), shares) > 0.5)

    def posterior(self, net: nn.Module, client: Client) -> Asking[Tensor]:
        """p(g | ℓ(x, ỹ; Θ)) of all the client's samples for the mixture's small-loss component g (equation 6), (n,)."""
        logits = yield Predict(net, client, self.eval_augment, self.eval_batch_size)
        losses = F.cross_entropy(logits, client.data.y, reduction="none").double()
        if self.loss_scale == "min_max":
            finite = losses[losses.isfinite()]
            top = float(finite.max()) if len(finite) else torch.inf
            losses = min_max(losses.nan_to_num(nan=top, posinf=top), when_flat=0.0)
        seed = derive(client.seed, "mixture")
        parts: TwoComponents = yield Split(losses, seed, self.gmm_reg_covar, self.gmm_tol)
        return parts.posterior

    def answer(self, net: nn.Module, seed: int, shape: tuple[int, int, int]) -> Tensor:
        """p(x̃; Θ), (C,): a network's output for the one Gaussian noise image that all clients make from `seed`."""
        noise = torch.randn(1, *shape, generator=torch_rng(seed, "noise image"))
        with evaluating(net), torch.no_grad():
            logits = net(noise.to(next(net.parameters()).device))[0].cpu()
        return logits.softmax(0) if self.sim_space == "softmax" else logits


class HeadTuning(Classifier):
    """Trains a network's head; the body only computes features, and nothing is propagated back through it.

    `body_mode` eval leaves BatchNorm's statistics alone; in `train`, as in the released code, they are those of the
    batch, and running ones (which FedRN's own network lacks) drift.
    """

    net: Network

    def __init__(self, net: nn.Module, spec: LocalSpec, t: int, *, body_mode: str) -> None:
        super().__init__(net, spec, t)
        self.body_mode = body_mode

    def train(self, mode: bool = True) -> HeadTuning:
        super().train(mode)
        if self.body_mode == "eval":
            self.net.eval()
            self.net.head.train(mode)
        return self

    def loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            features = self.net.features(batch.x)
        return F.cross_entropy(self.net.head(features), batch.y)

    def configure_optimizers(self) -> Any:
        return self.spec.optimizer_for(self.net.head.parameters(), self.t)


def _or_all(keep: Tensor) -> Tensor:
    if bool(keep.any()):
        return keep
    warn_once(log, "no sample of a client is called clean; it uses all of them")
    return torch.ones_like(keep)
