"""Who misleads FedRN? Label precision and recall of every voter, for the networks that a finished run holds.

    python experiments/fedrn_digits/voters.py noise.kind=asymmetric noise.high=0.8 seed=0 runs_dir=RUNS

Takes the words of `fnll run experiment=fedrn_digits method=fedrn`, computes the run unless RUNS has it, and lets all
clients vote once more on the last checkpoint. `own`: the client's last network; `received`: its neighbours as they
arrive; `tuned`: after their heads saw the auxiliary set, which `own` chose; `tuned on truth`: had that set been the
rightly labelled samples; `FedRN`: the weighted vote of own and tuned. Cells are precision / recall.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from by_noise_rate import BANDS
from torch import Tensor

from fnll.executors import Serial
from fnll.executors.jobs import answered
from fnll.federation import Federation
from fnll.harness.checkpoint import Checkpoints
from fnll.harness.config import compose
from fnll.harness.diagnostics import precision_recall
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare
from fnll.harness.run_folder import RunFolder
from fnll.local import Fit
from fnll.methods.fedrn import FedRN, HeadTuning, NeighbourState
from fnll.methods.fedrn_reliability import ensemble, shares
from fnll.training import fit
from fnll.types import Client


def elections(run: Run) -> pd.DataFrame:
    """A row per client: its noise, and what each voter would have it train on."""
    method, scenario, truth = run.method, run.scenario, run.truth
    assert isinstance(method, FedRN)
    assert truth.labels is not None
    folder = RunFolder(Path(run.cfg.runs_dir) / run.run_id)
    checkpoints = Checkpoints(folder.path / "checkpoint", folder.run_id)
    restored = checkpoints.load(lambda found: folder.disagreement(found.records))
    assert restored is not None
    state, t = restored.snapshot.state, restored.snapshot.t
    assert isinstance(state, NeighbourState)
    fed = Federation(run.world, Serial(scenario), budget=run.budget, seed=run.cfg.seed, t=t)
    cohort = sorted(state.locals)
    rows = []
    for c, panel in zip(cohort, method._panels(state, fed, cohort), strict=True):
        client = scenario.client(c, t=t, memory={}, labels=None, seed=c, device=run.device)
        right = client.data.y.cpu() == truth.labels[scenario.shards[c]]
        peers = [method._local(state, n) for n in panel.neighbours]
        votes = ballots(method, client, [state.locals[c], *peers], panel.scores, right)
        rows.append({"noise": float((~right).double().mean()), **{who: (vote, right) for who, vote in votes.items()}})
    return pd.DataFrame(rows)


def ballots(
    method: FedRN, client: Client, nets: Sequence[dict[str, Tensor]], scores: Sequence[float], right: Tensor
) -> dict[str, Tensor]:
    """What the voters call clean, as masks."""
    own = posterior(method, nets[0], client)
    chosen = own > 0.5
    everyone = torch.ones_like(chosen)
    auxiliary = client.subset(chosen if chosen.any() else everyone)
    ideal = client.subset(right if right.any() else everyone)
    received = [posterior(method, peer, client) for peer in nets[1:]]
    after = [posterior(method, peer, client, auxiliary) for peer in nets[1:]]
    told = [posterior(method, peer, client, ideal) for peer in nets[1:]]
    among = shares(scores[1:])
    return {
        "own": chosen,
        "received": ensemble(torch.stack(received), among) > 0.5,
        "tuned": ensemble(torch.stack(after), among) > 0.5,
        "tuned on truth": ensemble(torch.stack(told), among) > 0.5,
        "FedRN": ensemble(torch.stack([own, *after]), shares(scores)) > 0.5,
    }


def posterior(method: FedRN, weights: dict[str, Tensor], client: Client, auxiliary: Client | None = None) -> Tensor:
    """What a network says of the client's labels, once its head saw the auxiliary set, if there is one, as in FedRN."""
    net = method.net.load(weights)
    if auxiliary is not None and method.finetune_epochs:
        spec = replace(method.local, epochs=method.finetune_epochs, keep_optimizer=False)
        fit(Fit(HeadTuning(net, spec, client.t, body_mode=method.body_mode), auxiliary, ("head",)))
    return answered(method.posterior(net, client))


def pooled(pairs: pd.Series) -> str:
    """Precision / recall over all samples of some clients."""
    votes, rights = (torch.cat(masks) for masks in zip(*pairs, strict=True))
    return "{:.2f} / {:.2f}".format(*precision_recall(votes, rights))


def main() -> None:
    """Print a line per band of noise rates."""
    logging.basicConfig(level=logging.WARNING)
    run = prepare(compose(["experiment=fedrn_digits", "method=fedrn", *sys.argv[1:]]))
    execute(run)
    rows = elections(run)
    bands = rows.groupby(pd.cut(rows["noise"], BANDS, include_lowest=True), observed=True)
    voters = [name for name in rows if name != "noise"]
    table = bands["noise"].agg(clients="count", noise="mean").join(bands[voters].agg(pooled))
    print(table.to_string(float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
