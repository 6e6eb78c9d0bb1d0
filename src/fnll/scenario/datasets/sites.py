"""Trees of images that name their clients, `train/<client>/<class>/*`, or that have no test set."""

from __future__ import annotations

from collections.abc import Iterator

from fnll.errors import UserError
from fnll.scenario.datasets.own import Own
from fnll.scenario.datasets.sources import Source

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def own_tree(source: Source, name: str, *, trusted: bool) -> Own | None:
    """What such a tree says; None for `train/<class>/*` with `test/<class>/*`, which is no federation yet."""
    top = next(
        (top for top in ("", *(f"{entry}/" for entry in source.children(""))) if source.children(f"{top}train")), None
    )
    if top is None:
        return None
    named = _has_clients(source, f"{top}train")
    if not named and source.children(f"{top}test"):
        return None
    rows = [(*row, "train") for row in _rows(source, f"{top}train", named=named)]
    rows += [(*row, "test") for row in _rows(source, f"{top}test", named=_has_clients(source, f"{top}test"))]
    if not rows:
        return None  # the usual reading says what is missing
    strange = sorted({row[1] for row in rows if row[3] == "test"} - {row[1] for row in rows if row[3] == "train"})
    if strange:
        raise UserError(
            f"{source.title}: {source.place(top + 'test')} has classes that {source.place(top + 'train')} has not: "
            f"{', '.join(strange[:5])}"
        )
    files, labels, clients, splits = zip(*rows, strict=True)
    clean = [label if split == "test" and trusted else "" for label, split in zip(labels, splits, strict=True)]
    return Own(name, files, labels, clients if named else (), splits, clean, trusted=trusted)


def _has_clients(source: Source, folder: str) -> bool:
    """Whether the folders here hold folders of images, and no image themselves."""
    below = [f"{folder}/{entry}" for entry in _folders(source, folder)]
    deeper = any(_images(source, f"{name}/{entry}") for name in below for entry in _folders(source, name))
    return deeper and not any(_images(source, name) for name in below)


def _rows(source: Source, folder: str, *, named: bool) -> Iterator[tuple[str, str, str]]:
    """File, class and client of every image."""
    for client in _folders(source, folder) if named else [""]:
        home = f"{folder}/{client}" if named else folder
        for label in _folders(source, home):
            for file in _images(source, f"{home}/{label}"):
                yield f"{home}/{label}/{file}", label, client


def _folders(source: Source, name: str) -> list[str]:
    return [entry for entry in source.children(name) if not entry.lower().endswith(SUFFIXES)]


def _images(source: Source, name: str) -> list[str]:
    return [entry for entry in source.children(name) if entry.lower().endswith(SUFFIXES)]
