"""Make `import torchvision` work beside a CPU-only build of torch.

torchvision's wheels are built against CUDA. Beside a CPU build of torch their native library does not load, and then
the import fails with "operator torchvision::nms does not exist", and with it `import lightning` (through torchmetrics).
Declaring the two operators' schemas first lets models, datasets and transforms work; calling the operators still fails,
which is right, since nothing here uses them. Where the native library loads, this module does nothing.

It happens when torchvision is first imported, not with fnll: torch takes a second to import, which `fnll --help` can
spare.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []  # a declaration lasts as long as its handle


class BeforeTorchvision(MetaPathFinder):
    """Declares what is missing just before torchvision is imported, and leaves finding it to the others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]  # a new list: one is in use
            declare_missing_operators()
        return None


def native_library_loads() -> bool:
    """Whether torchvision's compiled operators can be loaded beside the installed torch."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # nothing to fix
    try:
        for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
            torch.ops.load_library(str(library))
    except (OSError, RuntimeError):
        return False
    return hasattr(torch.ops.torchvision, "nms")


def declare_missing_operators() -> None:
    """Declare what the native library would have declared."""
    if native_library_loads():
        return
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, BeforeTorchvision())
