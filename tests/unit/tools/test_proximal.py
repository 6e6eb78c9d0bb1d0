"""The forms of the proximal term, their values and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fnll.errors import UserError
from fnll.tools.proximal import prox_penalty, require_prox_form

FORMS: list[Any] = ["half_squared", "squared", "norm", "sum_tensor_norms"]


def value_and_gradient(
    form: Any, params: dict[str, list[float]], anchor: dict[str, list[float]], factor: float = 1.0
) -> tuple[float, dict[str, list[float]]]:
    leaves = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in params.items()}
    loss = factor * prox_penalty(leaves, {name: torch.tensor(value) for name, value in anchor.items()}, form)
    loss.backward()
    return loss.item(), {name: leaf.grad.tolist() for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize(
    ("form", "factor", "value", "gradient"),
    [
        ("half_squared", 1, 2.5, [1, 2]),
        ("squared", 5 * 0.4, 10, [4, 8]),  # FedCorr's paper: β μ̂ = 5 · 0.4
        ("norm", 5 * 0.4, 4.472136, [0.894427, 1.788854]),  # its released code
        ("sum_tensor_norms", 1, 2.236068, [0.447214, 0.894427]),
    ],
)
def test_t23(form: str, factor: float, value: float, gradient: list[float]) -> None:
    found, gradients = value_and_gradient(form, {"w": [1, 2]}, {"w": [0, 0]}, factor)
    assert found == pytest.approx(value, abs=1e-6)
    assert gradients["w"] == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize(
    ("form", "value", "a", "b"),
    [
        ("half_squared", 84.5, [3, -4], [-12]),
        ("squared", 169, [6, -8], [-24]),
        ("norm", 13, [3 / 13, -4 / 13], [-12 / 13]),
        ("sum_tensor_norms", 17, [3 / 5, -4 / 5], [-1]),
    ],
)
def test_gradients_point_up_and_down(form: str, value: float, a: list[float], b: list[float]) -> None:
    """w − w_g = (3, −4) and (−12): the pull is towards the anchor from both sides; buffers do not count."""
    found, gradients = value_and_gradient(
        form, {"a": [4, -2], "b": [-5]}, {"a": [1, 2], "b": [7], "running_mean": [99]}
    )
    assert found == pytest.approx(value)
    assert gradients["a"] == pytest.approx(a)
    assert gradients["b"] == pytest.approx(b)


@pytest.mark.parametrize("form", FORMS)
def test_at_the_anchor_the_gradient_is_zero_not_nan(form: Any) -> None:
    for factor in (0.0, 1.0):
        found, gradients = value_and_gradient(form, {"a": [4, -2], "b": [-5]}, {"a": [4, -2], "b": [-5]}, factor)
        assert found == 0
        assert gradients == {"a": [0, 0], "b": [0]}


@pytest.mark.parametrize("form", FORMS)
def test_one_tensor_at_the_anchor(form: Any) -> None:
    _, gradients = value_and_gradient(form, {"a": [4, -2], "b": [-5]}, {"a": [4, -2], "b": [-4]})
    assert gradients["a"] == [0, 0]
    assert gradients["b"][0] < 0


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_the_values(form: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    anchor = {"a": torch.randn(3, 2, generator=generator), "b": torch.randn((), generator=generator)}
    inputs = tuple(
        torch.randn(v.shape, generator=generator, dtype=torch.float64, requires_grad=True) for v in anchor.values()
    )
    assert torch.autograd.gradcheck(lambda a, b: prox_penalty({"a": a, "b": b}, anchor, form), inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_anchor_is_a_constant(form: Any) -> None:
    anchor = torch.tensor([1.0, 2.0], requires_grad=True)
    prox_penalty({"w": torch.tensor([2.0, 0.0], requires_grad=True)}, {"w": anchor}, form).backward()
    assert anchor.grad is None


@pytest.mark.parametrize("form", FORMS)
def test_a_cohort_can_be_vectorised(form: Any) -> None:
    anchor = {"w": torch.tensor([1.0, 2.0])}

    def penalty(params: dict[str, Tensor]) -> Tensor:
        return prox_penalty(params, anchor, form)

    together = vmap(grad(penalty))({"w": torch.tensor([[1.0, 2.0], [3.0, -1.0]])})
    alone = grad(penalty)({"w": torch.tensor([3.0, -1.0])})
    assert together["w"][0].tolist() == [0, 0]
    torch.testing.assert_close(together["w"][1], alone["w"])


def test_unknown_form() -> None:
    with pytest.raises(UserError, match=r"method\.prox must be one of half_squared, .*did you mean squared"):
        require_prox_form("sqared", "method.prox")
    require_prox_form("norm", "method.prox")
