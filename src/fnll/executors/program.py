"""Vectorised steps that repeat, as flat lists of operations.

Each step of a block runs the same operations on other numbers, and for small networks Python, `vmap` and autograd take
longer over them than the arithmetic. A step that was done often enough is therefore traced once: the list of what it
does, forward and backward, is then run without any of the three. Whatever may differ between two trainings is an input
of the list; that nothing else did is checked in the first step of every training (`fnll.executors.together`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, fx

log = logging.getLogger(__name__)

WORTH = 60  # steps of one kind after which tracing, which takes as long as some hundred of them, is worth its while
KINDS = 64  # kinds of steps that are kept

Arguments = list[list[Tensor]]
Step = Callable[..., tuple[Tensor, ...]]  # (*arguments) -> the losses, and the gradient of every parameter


class Programs:
    """Steps by their kind: how often each was done, and the list of those that were done often."""

    def __init__(self, worth: int = WORTH) -> None:
        self.worth = worth
        self._known: OrderedDict[Hashable, int | Step] = OrderedDict()

    def of(self, kind: Hashable, step: Step, arguments: Arguments) -> Step | None:
        """The list for steps of this kind, if there is one by now; `step` is what it would replace."""
        known = self._known.pop(kind, 0)
        if isinstance(known, int):
            known = known + 1 if known >= 0 else known
            if known > self.worth:
                known = _traced(step, arguments) or -1
        self._known[kind] = known
        if len(self._known) > KINDS:
            self._known.popitem(last=False)
        return None if isinstance(known, int) else known

    def refuse(self, kind: Hashable) -> None:
        """Never trace steps of this kind (again)."""
        self._known[kind] = -1


def _traced(step: Step, arguments: Arguments) -> Step | None:
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it imports a part of the compiler

    try:
        graph = make_fx(step)(*arguments)
    except Exception as error:
        log.debug("a step stays as it is, since tracing it fails: %s", error)
        return None
    _shortened(graph)

    def run(*inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result: tuple[Tensor, ...] = graph(*inputs)
        return result

    return run


def _shortened(graph: fx.GraphModule) -> None:
    """Leave out what does nothing: it was there for autograd and `vmap`."""
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        idle = node.target in (aten.detach.default, aten.alias.default) or (
            node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))
        )
        if idle and node.op == "call_function":
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
