"""Numbers that no machine holds, refused before anything is made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from fnll.errors import UserError, require
from fnll.net import Net

LARGEST = 2**63 - 1  # what torch and numpy take for a whole number
GB = 10**9


def check_numbers(value: Any, name: str = "") -> None:
    """Refuse whole numbers of more than 64 bits, at every depth."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_numbers(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for part in value:
            check_numbers(part, name)
    elif isinstance(value, int):
        require(abs(value) <= LARGEST, f"{name} is {value}, a number of more than 64 bits; type a smaller one")


def check_network(net: Net) -> None:
    """Refuse a network of ours whose weights alone are more than this machine's memory."""
    if not net.build.__module__.startswith("fnll.") or dict(net.settings).get("pretrained") is not None:
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with torch.device("meta"):  # shapes alone
            needed = sum(value.numel() * value.element_size() for value in net().state_dict().values())
    except RuntimeError:  # a layer of more elements than 64 bits count
        raise UserError("the model has more weights than any machine holds; type smaller numbers in model") from None
    require(
        needed <= there,
        f"the model's weights alone take {needed // GB} GB, and this machine has {there // GB}; type smaller numbers "
        "in model",
    )
