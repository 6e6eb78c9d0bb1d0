"""What the losses of lanes read and do not train, and how it takes its place in the one module that stands for all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_unflatten

from fnll.executors.habits import NotTogetherError
from fnll.executors.lanes import Lane, attributes, equal, is_number
from fnll.executors.rows import as_tensor
from fnll.executors.stacked import Rows, chosen
from fnll.local import LocalSpec

ROUND = -1  # the place of the round among the leaves of a lane


class Constants:
    """What the losses of lanes read and do not train, by lane where lanes differ: tensors, and numbers."""

    def __init__(self, lanes: Sequence[Lane], dtype: torch.dtype, *, strict: bool) -> None:
        first = self.lane = lanes[0]
        self.places: list[tuple[int | str, bool]] = []  # of each: a parameter's name or a leaf, and whether it differs
        self.differing: list[Tensor] = []
        self.shared: list[Tensor] = []
        for name, column in zip(first.fixed, zip(*(lane.fixed_tensors() for lane in lanes), strict=True), strict=True):
            self._add(name, [value.detach() for value in column])
        columns = dict(enumerate(zip(*(lane.leaves for lane in lanes), strict=True)))
        for i, leaves in columns.items():
            if isinstance(leaves[0], Tensor):
                self._add(i, list(leaves))
        numbers: dict[int, tuple[float, ...]] = {ROUND: tuple(lane.module.t for lane in lanes)}
        numbers |= {i: leaves for i, leaves in columns.items() if is_number(leaves[0])}
        odd = {i: leaves for i, leaves in numbers.items() if any(leaf != leaves[0] for leaf in leaves)}
        if not strict:
            odd[ROUND] = numbers[ROUND]  # in any case: a step traced in one round is good for the next
        self.places += [(i, True) for i in odd]
        self.differing += [as_tensor(leaves, dtype, first.request.client.device) for leaves in odd.values()]
        self.numbers_differ = bool(odd)
        self.form: Hashable = tuple(self.places), tuple(leaves[0] for i, leaves in numbers.items() if i not in odd)
        self.before = {**attributes(first.module), "t": first.module.t, "spec": first.module.spec}
        self.spec = _Unread(first.module.spec)
        self.swaps = [_place_of(first.module, name) for name in first.moved]
        self.others = [_place_of(first.module, place) for place, _ in self.places if isinstance(place, str)]

    def _add(self, place: int | str, values: list[Tensor]) -> None:
        same = equal(values)
        self.places.append((place, not same))
        (self.shared if same else self.differing).append(values[0] if same else torch.stack(values))

    def arguments(self, rows: Rows) -> list[list[Tensor]]:
        """Those of some lanes, and those that all share."""
        return [chosen(self.differing, rows), self.shared]

    @contextmanager
    def in_place(self, own: Sequence[Tensor], differing: Sequence[Tensor], shared: Sequence[Tensor]) -> Iterator[None]:
        """Let the module be that of one lane, and afterwards what it was."""
        sources = (iter(shared), iter(differing))
        values = [next(sources[differs]) for _, differs in self.places]
        count = len(self.others)
        leaves = [*self.lane.leaves, self.lane.module.t]
        for (place, _), value in zip(self.places[count:], values[count:], strict=True):
            leaves[place] = value  # type: ignore[index]
        t = leaves.pop()
        swaps = [*zip(self.swaps, own, strict=True), *zip(self.others, values[:count], strict=True)]
        kept = [holder[name] for (holder, name), _ in swaps]
        try:
            for (holder, name), value in swaps:
                holder[name] = value
            vars(self.lane.module).update(tree_unflatten(leaves, self.lane.tree), t=t, spec=self.spec)
            yield
        finally:
            for ((holder, name), _), value in zip(swaps, kept, strict=True):
                holder[name] = value
            vars(self.lane.module).update(self.before)


class _Unread:
    """Stands for the settings of training while a loss is computed: lanes may differ in all but a few of them."""

    def __init__(self, spec: LocalSpec) -> None:
        self.epochs, self.batch_size = spec.epochs, spec.batch_size

    def __getattr__(self, name: str) -> Any:
        raise NotTogetherError(f"its loss reads the setting {name}, which may differ between clients")


def _place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary that holds a parameter or buffer, where a plain tensor can take its place."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last
