"""What a report shows only if asked: published tables, curves that others logged, and detection over mixtures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fnll.report.detections import Detections
from fnll.report.figures.published import published, reference_curves
from fnll.report.gallery import Plate
from fnll.report.outside import Overlay, overlays, reference_table
from fnll.report.published import Comparison, comparisons
from fnll.report.published_tables import published_tables
from fnll.report.store import Store
from fnll.report.table import Table


@dataclass(frozen=True)
class Others:
    """Other people's numbers that were asked for; nothing, if nothing was."""

    comparisons: list[Comparison] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)
    curves: Path = Path()
    detections: Detections | None = None

    @property
    def tables(self) -> list[Table]:
        further = [reference_table(self.overlays, self.curves)] if self.overlays else []
        found = [self.detections.table] if self.detections else []
        return [*published_tables(self.comparisons), *further, *found]

    def plates(self) -> Iterator[Plate]:
        """The figures, one at a time."""
        if self.comparisons:
            caption = "Ours against the published numbers: on the diagonal they agree; bars are standard deviations"
            yield Plate("published", caption, published(self.comparisons))
        if self.overlays:
            caption = (
                f"Curves of {self.curves.name} (dashed) over ours: mean and standard deviation over trials; theirs end "
                "where ours end"
            )
            yield Plate("reference_curves", caption, reference_curves(self.overlays))
        if self.detections and self.detections.warmups > 1:
            caption = "Detection of noisy clients against the rounds of warm-up (compare FedNoRo, figure 4)"
            yield Plate("warmups", caption, self.detections.figure())


def others(store: Store, table: str | None, curves: Path | None, mixtures: int = 0) -> Others:
    """Read what was asked for: `table` is a published table's name, or empty for all that the store has cells of."""
    return Others(
        [] if table is None else comparisons(store, table),
        [] if curves is None else overlays(store, curves),
        curves or Path(),
        Detections.of(store, mixtures) if mixtures else None,
    )
