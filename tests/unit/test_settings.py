"""Declared settings: one message that says key, value, bound, meaning and, for words, the nearest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import Field

from fnll.errors import UserError
from fnll.settings import check_arguments, check_fields, settings_of


class Own:
    """A type of a plugin's own, which is nobody else's to judge."""


@dataclass
class Declared:
    mu: Annotated[float, Field(ge=0, description="μ weighs the pull")] = 0.1
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    rate: Annotated[float, Field(gt=0)] = 0.5
    rounds: Annotated[int, Field(ge=1, description="of training")] | None = None
    form: Literal["half_squared", "norm"] = "norm"
    stages: Sequence[Annotated[int, Field(ge=1, le=3)]] = ()
    betas: tuple[float, float] = (0.9, 0.99)
    active: bool = True
    own: Own | None = None


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"mu": 0},
        {"mu": 3},
        {"rounds": 1},
        {"rounds": None},
        {"form": "half_squared"},
        {"stages": [1, 3]},
        {"betas": [0.5, 0.5]},
        {"active": False},
        {"own": "whatever"},
    ],
)
def test_what_is_allowed(good):
    check_fields(Declared(**good), "method")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mu": -1}, "method.mu must be at least 0, got -1; μ weighs the pull"),
        ({"mu": True}, "method.mu must be at least 0, got true; μ weighs the pull"),
        ({"mu": "0.1"}, "method.mu must be at least 0, got '0.1'; μ weighs the pull"),
        ({"mu": float("inf")}, "method.mu must be finite and at least 0, got inf; μ weighs the pull"),
        ({"mu": float("nan")}, "method.mu must be at least 0, got nan; μ weighs the pull"),
        ({"share": 1.5}, "method.share must be in [0, 1], got 1.5"),
        ({"rate": 0}, "method.rate must be greater than 0, got 0"),
        ({"rounds": 0}, "method.rounds must be a whole number of at least 1, or null, got 0; of training"),
        ({"rounds": 1.0}, "method.rounds must be a whole number of at least 1, or null, got 1.0; of training"),
        ({"form": "nrm"}, "method.form must be half_squared or norm, got 'nrm'; did you mean norm?"),
        ({"form": None}, "method.form must be half_squared or norm, got null"),
        ({"stages": [1, 4]}, "method.stages must be a list, each of it a whole number from 1 to 3, got [1, 4]"),
        ({"stages": "12"}, "method.stages must be a list, each of it a whole number from 1 to 3, got '12'"),
        ({"betas": [0.5]}, "method.betas must be 2 values, each a number, got [0.5]"),
        ({"active": 1}, "method.active must be true or false, got 1"),
    ],
)
def test_what_is_refused(bad, message):
    with pytest.raises(UserError) as caught:
        check_fields(Declared(**bad), "method")
    assert str(caught.value) == message


def test_functions_are_checked_by_what_they_are_called_with():
    def build(width: Annotated[int, Field(ge=1)], own: Own) -> None: ...

    check_arguments(build, {"width": 1, "own": 3}, "model")
    with pytest.raises(UserError, match=r"model\.width must be a whole number of at least 1, got 0"):
        check_arguments(build, {"width": 0}, "model")


def test_annotations_that_name_nothing_are_left_to_their_owner():
    def build(width: "Nowhere", size: int) -> None: ...  # noqa: F821

    assert settings_of(build) == {}
