"""Vectorised steps that repeat, as flat lists of operations.

Each step of a block runs the same operations on other numbers, and for small networks Python, `vmap` and autograd take
longer over them than the arithmetic. A step that was done often enough is therefore traced once: the list of what it
does, forward and backward, is then run without any of the three. Whatever may differ between two trainings is an input
of the list; that nothing else did is checked in the first step of every training (`fnll.executors.together`).
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, fx

log = logging.getLogger(__name__)

WORTH = 40  # steps of one kind that take as long as tracing it and doing as many traced: then it is worth its while
KINDS = 64  # kinds of steps that are kept
OFTEN = 10  # times that a list, or what else is done together, is compared before that happens only now and then
SCRIPTS = 256  # lists that TorchScript may walk: it never gives their memory back, two or three megabytes each

Arguments = list[list[Tensor]]
_written = itertools.count()  # of this process, as its memory is
Step = Callable[..., tuple[Tensor, ...]]  # (*arguments) -> the losses, and the gradient of every parameter


class Programs:
    """Steps by their kind: how often each was done, and the list of those that were done often."""

    def __init__(self, worth: int = WORTH) -> None:
        self.worth = worth
        self.trusted: set[Hashable] = set()  # kinds whose list was compared with the step that it replaces
        self._proofs: Counter[Hashable] = Counter()  # trainings in which that was done, by what lists have in common
        self._trainings: Counter[Hashable] = Counter()  # in which such lists were used
        self._known: OrderedDict[Hashable, int | Step] = OrderedDict()
        self._refused: set[Hashable] = set()

    def of(self, kind: Hashable, step: Step, arguments: Arguments) -> Step | None:
        """The list for steps of this kind, if there is one by now; `step` is what it would replace."""
        if kind in self._refused:
            return None
        known = self._known.pop(kind, 0)
        if isinstance(known, int):
            known += 1
            if known > self.worth:
                traced = _traced(step, arguments)
                if traced is None:
                    self.refuse(kind)
                    return None
                known = traced
        self._known[kind] = known
        if len(self._known) > KINDS:
            self.trusted.discard(self._known.popitem(last=False)[0])
        return None if isinstance(known, int) else known

    def doubts(self, common: Hashable) -> bool:
        """Whether to compare a list with its step in this training: until ten times it held, then every tenth time."""
        self._trainings[common] += 1
        return self._proofs[common] < OFTEN or self._trainings[common] % OFTEN == 0

    def proved(self, common: Hashable) -> None:
        """A list did what its step does."""
        self._proofs[common] += 1

    def refuse(self, kind: Hashable) -> None:
        """Never trace steps of this kind (again)."""
        self._known.pop(kind, None)
        self._refused.add(kind)


def _traced(step: Step, arguments: Arguments) -> Step | None:
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it imports a part of the compiler

    lengths = [len(part) for part in arguments]

    def flat_step(*flat: Tensor) -> tuple[Tensor, ...]:
        rest = iter(flat)
        return step(*([next(rest) for _ in range(length)] for length in lengths))

    flat = [value for part in arguments for value in part]
    try:
        with _described_once():
            graph = make_fx(flat_step)(*flat)
    except Exception as error:
        log.debug("a step stays as it is, since tracing it fails: %s", error)
        return None
    _shortened(graph)
    program = _scripted(graph, flat)

    def run(*inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            result: tuple[Tensor, ...] = program(*(value for part in inputs for value in part))
        return result

    return run


def _described_once() -> AbstractContextManager[Any]:
    """One description of the shapes for the whole list: torch would begin a new one, with a stack trace, at every node.

    That is a third of the time of tracing, and all there is to it: where torch calls it otherwise, we do without.
    """
    try:
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode

        return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))
    except (ImportError, TypeError):
        return nullcontext()


def _scripted(graph: fx.GraphModule, flat: Sequence[Tensor]) -> Callable[..., Any]:
    """The same list, walked by TorchScript's interpreter, which takes a fifth of Python's time for each operation."""
    if next(_written) >= SCRIPTS:
        return graph
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            # Else it would keep these inputs, which are views of all batches of a training.
            program: Callable[..., Any] = torch.jit.trace(graph, tuple(flat), check_trace=False, _store_inputs=False)
            return program
    except Exception as error:  # newer Pythons come without TorchScript
        log.debug("a step is walked by Python, since TorchScript does not take it: %s", error)
        return graph


def _shortened(graph: fx.GraphModule) -> None:
    """Leave out what does nothing, which was there for autograd and `vmap`; multiply numbers as numbers."""
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        idle = node.target in (aten.detach.default, aten.alias.default) or (
            node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))
        )
        if idle and node.op == "call_function":
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.target is aten.bmm.default:
            _multiplied(graph.graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _multiplied(graph: fx.Graph, product: fx.Node) -> None:
    """Products of rows, columns and numbers, as `vmap` makes them of `torch.dot`, are slow as those of matrices."""
    aten = torch.ops.aten
    left, right = cast(list[fx.Node], product.args)
    _, rows, inner = left.meta["val"].shape
    columns = right.meta["val"].shape[2]
    with graph.inserting_before(product):
        if inner == 1:
            result = graph.call_function(aten.mul.Tensor, (left, right))
        elif rows == columns == 1:
            row = graph.call_function(aten.transpose.int, (right, 1, 2))
            terms = graph.call_function(aten.mul.Tensor, (left, row))
            result = graph.call_function(aten.sum.dim_IntList, (terms, [2], True))
        else:
            return
    result.meta = dict(product.meta)
    product.replace_all_uses_with(result)
    graph.erase_node(product)
