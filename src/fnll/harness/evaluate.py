"""What the harness measures: the global model on the clean test set. Methods never evaluate themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from fnll.harness.metrics import TOP5
from fnll.images import Images, InMemory, Transform
from fnll.seeding import torch_rng, walk
from fnll.types import State
from fnll.weights import Weights

NEAR = 5  # answers that top-5 accuracy counts
IN_MEMORY = 1 << 29  # bytes of normalised test images kept ready; larger sets are normalised batch by batch


class TestSet:
    """The clean test set, ready for a network on `device`."""

    __test__ = False  # not a pytest class

    def __init__(
        self,
        images: Images,
        labels: Tensor,
        transform: Transform,
        num_classes: int,
        batch_size: int,
        device: torch.device,
        *,
        shuffled: bool = False,  # in a fixed random order, for networks that normalise by the batch
    ) -> None:
        self.images, self.labels, self.transform = images, labels, transform
        self.num_classes, self.batch_size, self.device = num_classes, batch_size, device
        self.order = walk(len(labels)) if shuffled else torch.arange(len(labels))
        self.shuffled = shuffled
        floats = 4 * len(labels) * images.shape[0] * images.shape[1] * images.shape[2]
        self.ready = list(self._prepare()) if floats <= IN_MEMORY else None

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels in fixed order and fixed batch size (networks with batch statistics depend on it)."""
        return iter(self.ready) if self.ready is not None else self._prepare()

    def sampled(self, limit: int) -> TestSet:
        """A fixed sub-sample, for what has to be measured many times over."""
        order = torch.randperm(len(self.labels), generator=torch_rng("sampled test set", len(self.labels)))
        rows = order[:limit].sort().values
        images = InMemory(self.images.take(rows))
        return TestSet(
            images,
            self.labels[rows],
            self.transform,
            self.num_classes,
            self.batch_size,
            self.device,
            shuffled=self.shuffled,
        )

    def _prepare(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.labels), self.batch_size):
            rows = self.order[start : start + self.batch_size]
            pixels = self.images.take(rows).to(self.device)
            self.images.prefetch(self.order[start + self.batch_size : start + 2 * self.batch_size])
            yield self.transform.plain(pixels), self.labels[rows].to(self.device)


class Answers(NamedTuple):
    """How a model answered on a test set."""

    counts: Tensor  # (true class, predicted class)
    loss: float  # mean cross-entropy
    top5: float | None = None  # share whose class is among the five likeliest; None: there are no more than five


@torch.inference_mode()
def confusion(model: nn.Module, test: TestSet) -> Answers:
    """What `model` answers on the test set."""
    model = model.to(test.device).eval()
    counts = MulticlassConfusionMatrix(test.num_classes, validate_args=False).to(test.device)
    loss = torch.zeros((), dtype=torch.float64, device=test.device)
    near = torch.zeros((), dtype=torch.int64, device=test.device)
    many = test.num_classes > NEAR
    for x, y in test.batches():
        logits = model(x)
        loss += F.cross_entropy(logits.float(), y, reduction="sum").double()
        counts.update(logits.argmax(1), y)
        if many:
            near += (logits.topk(NEAR, dim=1).indices == y[:, None]).sum()
    images = max(1, len(test.labels))
    return Answers(counts.compute().cpu(), float(loss) / images, int(near) / images if many else None)


@dataclass
class LocalAccuracies:
    """The accuracy of clients' own models; of one that has not changed since it was last judged, what it was then."""

    model: Callable[[Any], nn.Module]  # of a state, as a method gives it
    test: TestSet
    known: dict[int, tuple[Weights, float]] = field(default_factory=dict)

    def of(self, states: Iterable[tuple[int, State]]) -> dict[int, float]:
        """By client, whose own model is that of the state."""
        return {client: self._of(client, state) for client, state in states}

    def _of(self, client: int, state: State) -> float:
        judged, accuracy = self.known.get(client, (None, 0.0))
        if judged is not state.weights:  # a state never changes the weights that it holds
            accuracy = scores(*confusion(self.model(state), self.test))["test/accuracy"]
            self.known[client] = state.weights, accuracy
        return accuracy


def local_scores(accuracies: Mapping[int, float]) -> dict[str, float]:
    """The mean and the extremes over clients."""
    values = list(accuracies.values())
    return {
        "local/accuracy": sum(values) / len(values),
        "local/accuracy_min": min(values),
        "local/accuracy_max": max(values),
    }


def scores(counts: Tensor, loss: float, top5: float | None = None) -> dict[str, float]:
    """Accuracy, balanced accuracy (mean recall over the classes present in the truth), loss, and top-5 accuracy."""
    counts = counts.double()
    support = counts.sum(1)
    recall = counts.diag()[support > 0] / support[support > 0]
    return {
        "test/accuracy": float(counts.diag().sum() / counts.sum()),
        "test/balanced_accuracy": float(recall.mean()),
        "test/loss": loss,
        **({} if top5 is None else {TOP5: top5}),
    }
