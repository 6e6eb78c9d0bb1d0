"""A scenario as one small file without images, so that others run exactly the same benchmark: `save` and `load`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fnll.errors import UserError, require
from fnll.scenario.build import Oracle, assemble, clean_of
from fnll.scenario.file_format import Contents, about_of, damaged, pack, read
from fnll.scenario.scenario import Dataset, Scenario, Truth
from fnll.settings import checked
from fnll.system.files import make_folder, write_atomic


def save(
    path: str | Path, dataset: Dataset, scenario: Scenario, truth: Truth, made: Mapping[str, Any] | None = None
) -> Path:
    """Write a scenario of `dataset` to `path`; `made` are the settings it was made with, as `provenance` gives them.

    An existing file is replaced by the same scenario only, never by another.
    """
    require(
        scenario.fingerprint == scenario.origin,
        "a scenario file holds the noisy scenario, from which oracles and pooled data are derived; save it with "
        "scenario.oracle=none scenario.pooled=false and set these when you load it",
    )
    content = pack(about_of(dataset, scenario, made or {}), scenario, truth)
    path = Path(path).expanduser()
    try:
        if path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} exists and holds something else; choose another name or delete it")
        make_folder(path.parent)
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write the scenario file {path}: {error.strerror or error}") from error
    return path


@checked("scenario")
def load(
    dataset: Dataset,
    partition: object = None,
    noise: object = None,
    *,
    path: Annotated[str, Field(title="the path of a scenario file")],
    num_clients: int | None = None,
    seed: int | None = None,
    oracle: Oracle = "none",
    pooled: bool = False,
) -> tuple[Scenario, Truth]:
    """The scenario in `path`, on the `dataset` it was made for: another one is refused.

    Called as `fnll.scenario.build` is, but `partition`, `noise`, `num_clients` and `seed` decide nothing here: the file
    says who has which samples and labels. `oracle` and `pooled` are applied to what it says.
    """
    contents = read(path)
    _require_same_data(path, contents.about, dataset)
    dataset = replace(dataset, validation=_validation(path, contents, dataset))
    _require_consistent(path, contents, dataset)
    scenario, truth = assemble(
        dataset,
        contents.shards,
        contents.observed,
        contents.nominal,
        oracle=oracle,
        pooled=pooled,
        clean=contents.clean,
    )
    if scenario.origin != contents.about["fingerprint"]:
        raise damaged(path, f"its content has fingerprint {scenario.origin}, not {contents.about['fingerprint']}")
    return scenario, truth


def _require_same_data(path: str, about: Mapping[str, Any], dataset: Dataset) -> None:
    wanted = about["dataset"]
    if wanted["digest"] == dataset.digest:
        return
    made = about["made"].get("dataset", {})
    choice = about["made"].get("choices", {}).get("dataset", wanted.get("name"))
    words = [f"dataset={choice}"]
    words += [f"dataset.{k}={v}" for k, v in made.items() if isinstance(v, int | float | str) and k[0] != "_"]
    raise UserError(
        f"scenario.path={path} was made for other images or labels than dataset={dataset.name} has "
        f"({wanted.get('samples')} samples of {wanted.get('name')}, digest {wanted['digest'][:12]}, not "
        f"{len(dataset.labels)} with {dataset.digest[:12]}); type {' '.join(words)}, or check the data's files"
    )


def _validation(path: str, contents: Contents, dataset: Dataset) -> Tensor | None:
    """The file's held-out positions; a request for others would change the scenario."""
    held, asked = contents.validation, dataset.validation
    if asked is not None and (held is None or not torch.equal(asked.sort().values, held.sort().values)):
        raise UserError(
            f"scenario.path={path} holds out {'no' if held is None else len(held)} samples for validation, not those "
            "that dataset.validation asks for, and the file decides; leave out dataset.validation"
        )
    return held


def _require_consistent(path: str, contents: Contents, dataset: Dataset) -> None:
    """Refuse numbers that contradict one another before they are used as positions and classes."""
    n, index = len(dataset.labels), torch.cat(contents.shards)
    for labels in (contents.observed, contents.clean):
        if labels is not None and not (len(labels) == n and _within(labels, dataset.num_classes)):
            raise damaged(path, "its labels do not fit the data set")
    known = clean_of(dataset)
    if contents.clean is not None and known is not None and not torch.equal(contents.clean, known):
        raise damaged(path, "its clean labels are not those of the data set")
    if not _within(index, n) or len(index.unique()) < len(index):
        raise damaged(path, "its clients' samples do not fit the data set")
    if not len(contents.nominal) == len(contents.shards) == contents.about["clients"]:
        raise damaged(path, "it names different numbers of clients")


def _within(values: Tensor, bound: int) -> bool:
    return not len(values) or 0 <= int(values.min()) <= int(values.max()) < bound
