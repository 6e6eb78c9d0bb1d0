"""A scenario as one small file without images, so that others run exactly the same benchmark.

The file is a zip of numpy arrays (`numpy.load` opens it) and of `scenario.json`, which says what it is and how it was
made: `unzip -p FILE scenario.json`. Nothing in it is ever unpickled or instantiated. The same scenario gives the same
bytes, so a checksum can be published with it.

| array | shape | meaning |
|---|---|---|
| `observed` | (n,) | the labels that clients train on |
| `clean` | (n,) | the true labels; absent where nobody knows them |
| `indices`, `sizes` | (Σ n_k,), (clients,) | the clients' samples one after the other, and how many each has |
| `nominal`, `realised` | (clients,) | noise levels as in `Truth` |
| `validation` | (v,) | positions held out from the clients; absent if there are none |
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fnll import NUMBERS, __version__
from fnll.errors import UserError, require
from fnll.scenario.build import Oracle, assemble, clean_of
from fnll.scenario.scenario import Dataset, Scenario, Shards, Truth
from fnll.settings import checked
from fnll.system.files import make_folder, write_atomic

log = logging.getLogger(__name__)

FORMAT = 2  # 1 had no hash of the truth
MEMBERS = {"observed": 1, "clean": 1, "indices": 1, "sizes": 1, "nominal": 1, "realised": 1, "validation": 1}  # axes
LARGEST = 1 << 31  # bytes that a member may unpack to
ABOUT = "scenario.json"
UNREADABLE = (  # what zipfile, json, numpy and torch answer to damaged bytes
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Contents:
    """What a scenario file holds."""

    about: dict[str, Any]
    observed: Tensor
    clean: Tensor | None
    shards: Shards
    nominal: Tensor
    validation: Tensor | None


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
    content = _pack(_about(dataset, scenario, made or {}), scenario, truth)
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
        raise _damaged(path, f"its content has fingerprint {scenario.origin}, not {contents.about['fingerprint']}")
    return scenario, truth


def read(path: str | Path) -> Contents:
    """What the file holds, checked for damage but not yet against a data set."""
    data = _bytes(path)
    about = _read_about(path, data)
    try:
        with np.load(BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in MEMBERS if name in file.files}
        whole = {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()
                 if name not in ("nominal", "realised")}  # fmt: skip
        _require_truth(path, about, arrays)
        shards = torch.split(whole["indices"], whole["sizes"].tolist())
        nominal = torch.from_numpy(arrays["nominal"].astype(np.float64))
        return Contents(about, whole["observed"], whole.get("clean"), shards, nominal, whole.get("validation"))
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def about(path: str | Path) -> dict[str, Any]:
    """What `scenario.json` says: format, fnll, numbers, fingerprint, clients, dataset, made."""
    return _read_about(path, _bytes(path))


def _bytes(path: str | Path) -> bytes:
    try:
        return Path(str(path)).expanduser().read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"scenario.path={path} does not exist (seen from {Path.cwd()}); `fnll scene ... --save FILE` makes one"
        ) from None
    except OSError as error:
        raise UserError(f"scenario.path={path} cannot be read: {error.strerror or error}") from error


def _read_about(path: str | Path, data: bytes) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            known = [entry for entry in archive.infolist() if entry.filename.removesuffix(".npy") in (*MEMBERS, ABOUT)]
            if any(entry.file_size > LARGEST for entry in known):
                raise ValueError("a part of it unpacks to more than any data set needs")
            text = archive.read(ABOUT).decode()
        found: dict[str, Any] = json.loads(text)
        if found["format"] > FORMAT:
            raise UserError(
                f"scenario.path={path} was written by fnll {found.get('fnll')}, which is newer than this one "
                f"({__version__}); update fnll"
            )
        plain = json.dumps(found, ensure_ascii=False)  # `$` may be written as \u0024
        if "${" in plain or not isinstance(found["made"], dict) or not isinstance(found["dataset"], dict):
            raise ValueError(f"{ABOUT} is not what fnll writes")
        if not all(isinstance(text, str) for text in (found["fingerprint"], found["dataset"]["digest"])):
            raise ValueError("its fingerprint or the digest of its data is no text")
        if not all(isinstance(key, str) and key for part in (found["made"], found["dataset"]) for key in part):
            raise ValueError("a setting has no name")
        int(found["clients"])
    except UNREADABLE as error:
        raise _damaged(path, error) from error
    return found


def _about(dataset: Dataset, scenario: Scenario, made: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "fnll": __version__,
        "numbers": NUMBERS,
        "fingerprint": scenario.fingerprint,
        "clients": len(scenario.shards),
        "dataset": {
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset.labels),
            "classes": dataset.num_classes,
        },
        "made": dict(made),
    }


def _pack(about: dict[str, Any], scenario: Scenario, truth: Truth) -> bytes:
    whole: dict[str, Tensor | None] = {
        "observed": scenario.labels,
        "clean": truth.labels,
        "indices": torch.cat(scenario.shards),
        "sizes": torch.tensor(scenario.sizes),
        "validation": truth.validation,
    }
    arrays = {name: _smallest(values.numpy()) for name, values in whole.items() if values is not None}
    arrays |= {"nominal": truth.nominal.double().numpy(), "realised": truth.realised.double().numpy()}
    about = {**about, "truth": _truth_digest(about, arrays)}
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo(ABOUT)  # without the time of day: the same scenario is the same file
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        archive.writestr(entry, json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return buffer.getvalue()


def _truth_digest(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """A hash of what the fingerprint does not cover: the clean labels, the noise levels, and how all was made."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("clean", "nominal", "realised", "validation"):
        values = arrays.get(name)
        kind = "<f8" if name in ("nominal", "realised") else "<i8"
        content = b"" if values is None else np.ascontiguousarray(values.astype(kind)).tobytes()
        digest.update(f"{name}:{-1 if values is None else values.size}:".encode() + content)
    digest.update(json.dumps([about["fingerprint"], about["made"]], sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()


def _require_truth(path: str | Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    if about["format"] < FORMAT:
        log.warning("scenario.path=%s is of an older format: its clean labels and noise levels are unverified", path)
    elif about.get("truth") != _truth_digest(about, arrays):
        raise ValueError("its clean labels, noise levels or settings are not those it was saved with")


def _smallest(values: np.ndarray) -> np.ndarray:
    """As the smallest unsigned integers that hold them, byte order fixed."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<"))


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
            raise _damaged(path, "its labels do not fit the data set")
    known = clean_of(dataset)
    if contents.clean is not None and known is not None and not torch.equal(contents.clean, known):
        raise _damaged(path, "its clean labels are not those of the data set")
    if not _within(index, n) or len(index.unique()) < len(index):
        raise _damaged(path, "its clients' samples do not fit the data set")
    if not len(contents.nominal) == len(contents.shards) == contents.about["clients"]:
        raise _damaged(path, "it names different numbers of clients")


def _within(values: Tensor, bound: int) -> bool:
    return not len(values) or 0 <= int(values.min()) <= int(values.max()) < bound


def _damaged(path: str | Path, reason: object) -> UserError:
    said = f": {reason}" if str(reason) else ""
    return UserError(
        f"scenario.path={path} is corrupted or not a scenario file{said}; get another copy, or make it again with "
        "`fnll scene ... --save FILE`"
    )
