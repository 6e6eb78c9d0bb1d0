"""The two forms most tools here have: what the paper says and what its authors' released code does."""

from __future__ import annotations

from typing import Literal

from fnll.errors import UserError, nearest

Variant = Literal["paper", "official"]


def require_variant(variant: str, name: str = "variant") -> None:
    """Demand one of the two forms."""
    if variant not in ("paper", "official"):
        raise UserError(f"{name} must be paper or official, got {variant!r}; {nearest(variant, ('paper', 'official'))}")
