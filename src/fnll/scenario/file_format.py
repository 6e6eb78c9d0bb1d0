"""The format of scenario files: what is in one, how it is written, and how it is read without trusting it.

A file is a zip of numpy arrays (`numpy.load` opens it) and of `scenario.json`, which says what it is and how it was
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
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnll import NUMBERS, __version__
from fnll.errors import UserError
from fnll.scenario.scenario import Dataset, Scenario, Shards, Truth
from fnll.system import foreign

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
        raise damaged(path, error) from error


def about(path: str | Path) -> dict[str, Any]:
    """What `scenario.json` says: format, fnll, numbers, fingerprint, clients, dataset, made."""
    return _read_about(path, _bytes(path))


def _bytes(path: str | Path) -> bytes:
    try:
        return foreign.read(Path(str(path)).expanduser())
    except FileNotFoundError:
        raise UserError(
            f"scenario.path={path} does not exist (seen from {Path.cwd()}); `fnll scene ... --save FILE` makes one"
        ) from None
    except (OSError, foreign.ForeignError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"scenario.path={path} cannot be read: {reason}") from error


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
        raise damaged(path, error) from error
    return found


def about_of(dataset: Dataset, scenario: Scenario, made: Mapping[str, Any]) -> dict[str, Any]:
    """What `scenario.json` of this scenario says."""
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


def pack(about: dict[str, Any], scenario: Scenario, truth: Truth) -> bytes:
    """The bytes of a file: the same scenario is the same file."""
    whole: dict[str, Tensor | None] = {
        "observed": scenario.labels,
        "clean": truth.labels,
        "indices": torch.cat(scenario.shards),
        "sizes": torch.tensor(scenario.sizes),
        "validation": truth.validation,
    }
    arrays = {name: _smallest(values.numpy()) for name, values in whole.items() if values is not None}
    arrays |= {"nominal": truth.nominal.double().numpy(), "realised": truth.realised.double().numpy()}
    about = {**about, "truth": truth_digest(about, arrays)}
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo(ABOUT)  # without the time of day: the same scenario is the same file
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        archive.writestr(entry, json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return buffer.getvalue()


def _smallest(values: np.ndarray) -> np.ndarray:
    """As the smallest unsigned integers that hold them, byte order fixed."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<"))


def truth_digest(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
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
    elif about.get("truth") != truth_digest(about, arrays):
        raise ValueError("its clean labels, noise levels or settings are not those it was saved with")


def damaged(path: str | Path, reason: object) -> UserError:
    """What to say of a file that cannot be used."""
    said = f": {reason}" if str(reason) else ""
    return UserError(
        f"scenario.path={path} is corrupted or not a scenario file{said}; get another copy, or make it again with "
        "`fnll scene ... --save FILE`"
    )
