"""Traced steps: the same numbers by whoever walks them, and no more of TorchScript's memory than is allowed."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import Tensor

from fnll.executors import program
from fnll.executors.program import Programs


def step(params: list[Tensor], *rest: list[Tensor]) -> tuple[Tensor, ...]:
    own = [value.detach().requires_grad_() for value in params]
    loss = sum((value * value).sum((1, 2)) for value in own)
    assert isinstance(loss, Tensor)
    return (loss.detach(), *torch.autograd.grad(loss.sum(), own))


ARGUMENTS = [[torch.arange(12.0).view(2, 3, 2)], [], []]


def walked(programs: Programs, kind: str) -> object:
    found = programs.of(kind, step, ARGUMENTS)
    assert found is not None
    assert all(map(torch.equal, found(*ARGUMENTS), step(*ARGUMENTS)))
    (cell,) = [cell.cell_contents for cell in found.__closure__ or ()]
    return cell


def test_torchscript_walks_only_so_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SCRIPTS", 2)
    monkeypatch.setattr(program, "_written", itertools.count())
    programs = Programs(worth=0)
    found = [walked(programs, kind) for kind in ("first", "second", "third", "first")]
    assert [isinstance(one, torch.jit.ScriptModule) for one in found] == [True, True, False, True]


def test_a_traced_step_keeps_nothing_of_what_it_was_traced_with() -> None:
    programs = Programs(worth=0)
    arguments = [[torch.arange(12.0).view(2, 3, 2)], [], []]
    inside = weakref.ref(arguments[0][0])
    assert programs.of("kind", step, arguments) is not None
    del arguments
    gc.collect()
    assert inside() is None
