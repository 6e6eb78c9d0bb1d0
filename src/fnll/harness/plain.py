"""Values in JSON's types, without importing torch or numpy to look whether there is something of theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` in JSON's types; non-finite numbers become null."""
    if hasattr(value, "detach"):  # a tensor
        return plain(value.detach().cpu().numpy())
    if isinstance(value, float) and not hasattr(value, "tolist"):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(part) for part in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value
