"""Make `import torchvision` work beside a CPU-only build of torch.

torchvision's wheels are built against CUDA. Beside a CPU build of torch their native library does not load, and then
the import fails with "operator torchvision::nms does not exist", and with it `import lightning` (through torchmetrics).
Declaring the two operators' schemas first lets models, datasets and transforms work; calling the operators still fails,
which is right, since nothing here uses them. Where the native library loads, this module does nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def native_library_loads() -> bool:
    """Whether torchvision's compiled operators can be loaded beside the installed torch."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # nothing to mend
    try:
        for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
            torch.ops.load_library(str(library))
    except (OSError, RuntimeError):
        return False
    return hasattr(torch.ops.torchvision, "nms")


def declare_missing_operators() -> torch.library.Library | None:
    """Declare what the native library would have declared; keep the returned handle alive."""
    if native_library_loads():
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


_LIBRARY = declare_missing_operators()
