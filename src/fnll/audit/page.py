"""audit.html: the joint verdict on one page that fetches nothing, with a gallery of the samples to review first."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from fnll import __version__
from fnll.audit.joint import Joint, best
from fnll.audit.plan import CONFIDENT, Plan
from fnll.scenario.datasets.own_rows import unguarded
from fnll.scenario.scenario import CLEAN

SHOWN = 1000  # samples in the gallery at most
SUSPECT = 0.2  # probability below which a sample is not worth a picture
LEAST = 60  # pictures in any case
SIDE = 96  # pixels of a thumbnail
LIMITS = (
    "Whether a label is wrong. It finds labels that do not fit what was learnt from the others; a person has to look.",
    "Mistakes that all clients share: if everybody confuses two classes alike, models learn the confusion.",
    "Whether a client is noisy or different: other devices, patients or habits look like noise to any method here.",
    "Images that two experts would label differently: they rank high and have no right label.",
    "Rare classes: with a few dozen samples of a class, models are unsure and the list is less reliable.",
)


def page(joint: Joint, plan: Plan, warnings: Sequence[str], command: str) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("fnll.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    run, script = joint.run, _template("audit.js")
    clean = run.truth.test_truth == CLEAN
    return environment.get_template("audit.html").render(
        name=run.scenario.name,
        lead=(
            f"{len(run.scenario.labels):,} samples of {len(run.scenario.shards)} clients in {run.scenario.num_classes} "
            f"classes, judged by {len(joint.members)} members in {plan.folds} folds"
        ),
        warnings=warnings,
        clients=_clients(joint),
        review_note=_review_note(joint),
        names=[run.scenario.called(k) for k in range(len(run.scenario.shards))],
        labels=run.dataset.class_names,
        cards=_cards(joint),
        choice=_choice(joint, clean),
        held_out_words=f"agreement with held-out labels ({'reviewed' if clean else 'observed: they may be wrong'})",
        panel=_panel(joint),
        left_out=list(plan.left_out.items()),
        agreement=[(a, b, _number(alike), _percent(shared)) for a, b, alike, shared in joint.agreement()],
        limits=LIMITS,
        command=command,
        provenance=f"fnll {__version__}, scenario {run.scenario.fingerprint}, {plan.rounds} rounds, seed {plan.seed}",
        style=Markup(_template("audit.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def evidence() -> dict[str, Any]:
    """Scores of detectors where the truth is known, as `experiments/audit_digits` measured them."""
    return json.loads(files("fnll.audit").joinpath("evidence.json").read_text(encoding="utf-8"))


def _clients(joint: Joint) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in joint.clients_table().to_dict("records"):
        level, low, high = (float(np.nan_to_num(row[key])) for key in ("noise_level", "low", "high"))
        facts = {str(key): value for key, value in row.items()}
        rows.append({**facts, "client": unguarded(row["client"]), "level": level, "low": low, "high": high})
    return sorted(rows, key=lambda row: -row["level"])


def _review_note(joint: Joint) -> str:
    likely = int((np.nan_to_num(joint.p_wrong) > 0.5).sum())
    shown = len(_listed(joint))
    note = (
        f"The members' mean probability that the label is wrong is above one half for {likely:,} samples. Here are the "
        f"first {shown:,} of the list, worst first: the label as it is, the suggestion, the probability, and how many "
        "members agree; samples.csv has them all."
    )
    scores = joint.reviewed()
    if scores:
        note += (
            f" On the {scores['reviewed']} reviewed labels the suggestions would fix {scores['fixed']} and break "
            f"{scores['broken']}."
        )
    return note


def _listed(joint: Joint) -> np.ndarray:
    """The samples of the gallery."""
    suspects = int((joint.p_wrong[joint.order] >= SUSPECT).sum())
    return joint.order[: min(SHOWN, max(LEAST, suspects))]


def _cards(joint: Joint) -> list[dict[str, Any]]:
    run, order = joint.run, _listed(joint)
    owners, names = run.dataset.owners, run.dataset.class_names
    assert owners is not None
    pixels = run.scenario.images.take(torch.from_numpy(order)).numpy()
    return [
        {
            "rank": place + 1,
            "file": run.dataset.names[i],
            "client": run.scenario.called(int(owners[i])),
            "label": names[joint.observed[i]],
            "suggested": names[joint.suggested[i]],
            "changed": bool(joint.suggested[i] != joint.observed[i]),
            "p": f"{100 * joint.p_wrong[i]:.0f}",
            "agree": f"{joint.votes[i]} of {len(joint.judges)}",
            "uri": thumbnail(pixels[place]),
        }
        for place, i in enumerate(order.tolist())
    ]


def thumbnail(pixels: np.ndarray) -> str:
    """Stored pixels (channels, height, width) as an image in a URI."""
    channels = pixels if pixels.shape[0] in (1, 3) else pixels[:1]
    image = Image.fromarray(channels[0] if channels.shape[0] == 1 else channels.transpose(1, 2, 0))
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _choice(joint: Joint, clean: bool) -> str:
    top, alike = best(joint.members)
    name = {CONFIDENT: "FedAvg"}.get(top.name, top.name)
    others = [{CONFIDENT: "FedAvg"}.get(other, other) for other in alike]
    told = (
        f"To train on these data as they are, it would use {name}: its models agreed best with held-out labels "
        f"({np.nanmean(top.held_out):.1%} on average over folds)."
    )
    if others:
        told += f" {', '.join(others)} cannot be told from it (95 %, paired over folds)."
    if not clean:
        told += " These labels are observed ones: a model that does not follow wrong labels disagrees with them, too."
    return told


def _panel(joint: Joint) -> list[dict[str, str]]:
    known = evidence()["area"]
    rows = []
    for member in joint.members:
        area, reference, tables = known.get(member.name, (None, None, 0))
        several = f"{tables} table{'' if tables == 1 else 's'} of digits"
        told = "not measured" if area is None else f"area under the curve {area:.3f} on {several}"
        if not member.judges_samples:
            told += "; it judges clients, not samples: its samples come from confident learning and do not count"
        elif area is not None and area < reference:
            told += f": worse than confident learning's {reference:.3f}"
        rows.append(
            {
                "name": member.name,
                "held_out": f"{np.nanmean(member.held_out):.1%} ± {np.nanstd(member.held_out, ddof=1):.1%}",
                "likely": f"{int(member.likely.sum()):,}",
                "evidence": told,
            }
        )
    return rows


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.0%}"


def _template(name: str) -> str:
    return files("fnll.audit").joinpath("templates", name).read_text(encoding="utf-8")
