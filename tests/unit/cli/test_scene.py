"""`fnll scene` and the scenario card: facts, warnings, figures, and one message for a mistake."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fnll.cli import main
from fnll.harness.config import compose
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.images import InMemory, Transform
from fnll.scenario import Dataset, assemble
from fnll.scenario.card import Card, card, named
from fnll.scenario.card_compared import compared_bars, compared_bubbles
from fnll.scenario.card_figures import class_bars, class_bubbles, draw, noise_levels, transitions
from tiny import DATA

MORE = [*DATA, "dataset.samples=240"]


def made(
    owners: list[int], clean: list[int], observed: list[int], nominal: list[float], classes: int = 2, **options: Any
) -> Card:
    """The card of a scenario in which sample i belongs to client owners[i] (to nobody if that is -1)."""
    images = InMemory(torch.zeros(len(clean), 1, 1, 1, dtype=torch.uint8))
    native = options.pop("native", False)
    data = Dataset("made", images, torch.tensor(clean), images, torch.tensor(clean), classes,
                   Transform((0.0,), (1.0,)), native_noise=native)  # fmt: skip
    shards = tuple(torch.nonzero(torch.tensor(owners) == k)[:, 0] for k in range(len(nominal)))
    return card(*assemble(data, shards, torch.tensor(observed), torch.tensor(nominal, dtype=torch.float64), **options))


def texts(facts: Card) -> str:
    return "\n".join(remark.text for remark in facts.remarks)


def large(clients: int = 12, size: int = 30, **options: Any) -> Card:
    """Clients of `size` samples of both classes, without noise: nothing to remark on."""
    n = clients * size
    labels = [i % 2 for i in range(n)]
    return made([i // size for i in range(n)], labels, labels, [0.0] * clients, **options)


def test_the_facts_of_a_card():
    facts = made([0, 0, 0, 0, 1, 1], [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], [0.5, 0.25], classes=3)
    assert facts.sizes.tolist() == [4, 2]
    assert facts.counts.tolist() == [[2, 1, 1], [0, 0, 2]]
    assert facts.seen.tolist() == [[1, 2, 1], [1, 0, 1]]
    assert facts.realised.tolist() == [0.25, 0.5]
    assert facts.noise == pytest.approx(2 / 6)
    assert facts.transition().tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert facts.transition(1).tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert facts.class_names == ("0", "1", "2")
    table = facts.table()
    assert table["classes"].tolist() == [3, 1]
    assert table["classes_observed"].tolist() == [3, 2]
    assert table["class_2"].tolist() == [1, 2]


def test_a_sound_scenario_has_no_warnings():
    assert large().remarks == ()


@pytest.mark.parametrize(("size", "tags"), [(21, []), (20, ["few for LID"]), (9, ["few for a GMM", "few for LID"])])
def test_clients_too_small_for_lid_or_a_mixture(size, tags):
    assert [remark.tag for remark in large(size=size).remarks] == tags
    if tags:
        assert "clients 0, 1, 2, 3, 4, 5, 6, 7 and 4 more" in texts(large(size=size))


def test_empty_clients_and_samples_that_nobody_has():
    facts = made([0] * 30 + [-1] * 2, [0, 1] * 16, [0, 1] * 16, [0.0, 0.0])
    assert "without samples, so they never take part: client 1" in texts(facts)
    assert "2 of 32 training samples belong to no client" in texts(facts)
    assert facts.table()["remarks"].tolist() == ["", "empty"]


def test_held_out_samples_are_not_lost():
    labels = torch.tensor([0, 1] * 20)
    images = InMemory(torch.zeros(40, 1, 1, 1, dtype=torch.uint8))
    data = Dataset("made", images, labels, images, labels, 2, Transform((0.0,), (1.0,)), validation=torch.arange(4))
    facts = card(*assemble(data, (torch.arange(40),), labels, torch.zeros(1).double()))
    assert (facts.held_out, facts.sizes.tolist()) == (4, [36])
    assert "belong to no client" not in texts(facts)


def test_missing_classes():
    owners = [0] * 30 + [1] * 30 + [2] * 30
    clean = [0] * 30 + [0, 1] * 15 + [0, 1, 2] * 10
    facts = made(owners, clean, clean, [0.0] * 3, classes=4)
    assert "no client holds class 3" in texts(facts)
    assert "one class only: client 0" in texts(facts)
    assert "some of the 4 classes missing (the fewest that a client has: 1): clients 1, 2" in texts(facts)
    hidden = made([0] * 30, [0, 1] * 15, [0] * 30, [0.5])
    assert "no client has a sample labelled 1" in texts(hidden)
    assert "no client holds" not in texts(hidden)


def test_nominal_and_realised_noise_far_apart():
    clean = [0, 1] * 200
    observed = [1 - y if i < 40 else y for i, y in enumerate(clean)]  # client 0: 40 of 200 wrong
    owners = [0] * 200 + [1] * 200
    assert "far from" not in texts(made(owners, clean, observed, [0.28, 0.0]))
    facts = made(owners, clean, observed, [0.4, 0.0])
    assert "far from the nominal level (most: client 0, nominal 0.40, realised 0.20): client 0" in texts(facts)
    corrected = made(owners, clean, observed, [0.4, 0.0], oracle="true_labels")
    assert "far from" not in texts(corrected)  # realised is zero on purpose


def test_few_clients_are_few_for_a_mixture_over_clients():
    assert "only 9 clients: too few" in texts(large(9))
    assert "are few" not in texts(large(10))
    assert "are few" not in texts(large(1))  # one client: centralised


def test_unknown_truth_is_said_and_counted_by_observed_labels(tmp_path):
    facts = made([0] * 30, [0, 1] * 15, [0, 1] * 15, [float("nan")], native=True)
    assert "nobody knows the true labels" in texts(facts)
    assert facts.transition() is None
    assert np.isnan(facts.noise)
    assert facts.counts.tolist() == [[15, 15]]
    assert {path.stem for path in draw(facts, tmp_path)} == {"classes_bubbles", "classes_bars"}


def test_named():
    assert named([3]) == "client 3"
    assert named([1, 4]) == "clients 1, 4"
    assert named(list(range(10))) == "clients 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


# Figures


def test_the_dots_and_bars_are_the_counts():
    facts = made([0, 0, 0, 0, 1, 1], [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], [0.5, 0.25], classes=3)
    dots = class_bubbles(facts).axes[0].collections[0]
    sizes = dict(zip(map(tuple, dots.get_offsets().astype(int).tolist()), dots.get_sizes(), strict=True))
    assert set(sizes) == {(0, 0), (0, 1), (0, 2), (1, 2)}
    assert sizes[0, 0] == pytest.approx(2 * sizes[0, 1])  # areas, not diameters
    bars = class_bars(facts).axes[0].collections  # one per class; clients sorted by size, so client 1 comes first
    spans = [[(path.vertices[:, 1].min(), path.vertices[:, 1].max()) for path in some.get_paths()] for some in bars]
    assert spans == [[(0, 0), (0, 2)], [(0, 0), (2, 3)], [(0, 2), (3, 4)]]


def test_the_noise_figure_shows_both_levels():
    facts = made([0, 0, 0, 0, 1, 1], [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], [0.4, 0.0], classes=3)
    left, right = noise_levels(facts).axes
    assert [bar.get_height() for bar in left.containers[0]] == [0.25, 0.5]
    assert left.lines[0].get_ydata().tolist() == [0.4]
    assert right.collections[0].get_offsets().tolist() == [[0.4, 0.25], [0.0, 0.5]]


def test_transition_matrices_are_shares_of_the_true_class():
    facts = made([0, 0, 0, 0, 1, 1], [0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0], [0.5, 0.25], classes=3)
    overall, second, _ = transitions(facts, [1]).axes
    np.testing.assert_allclose(overall.images[0].get_array(), [[0.5, 0.5, 0], [0, 1, 0], [1 / 3, 0, 2 / 3]])
    assert second.images[0].get_array().mask[:2].all()  # client 1 has no sample of these classes
    assert overall.get_title() == "all clients: 33% of 6 wrong"
    assert second.get_title() == "client 1: 50% of 2 wrong"


def test_many_classes_and_clients_are_drawn_too(tmp_path):
    labels = [i % 25 for i in range(1000)]
    facts = made([i // 20 for i in range(1000)], labels, labels, [0.0] * 50, classes=25)
    sizes = {path.name: path.stat().st_size for path in draw(facts, tmp_path, [3])}
    assert len(sizes) == 4 * 2  # figures, each as SVG and PNG
    assert min(sizes.values()) > 1000


# The command


def scene(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["scene", *words]) == 0
    return capsys.readouterr().out


def test_the_command_prints_the_fingerprint_of_a_run(capsys, tmp_path):
    words = [*MORE, "num_clients=6", "noise.rho=1.0"]
    out = scene(capsys, *words)
    run = [*words, "rounds=1", "model=mlp", "model.hidden=[4]", "local.epochs=1", f"runs_dir={tmp_path}"]
    summary = execute(prepare(compose(run)))
    assert f"fingerprint {summary['fingerprint']}" in out
    assert "synthetic: 6 clients, 240 samples, 4 classes" in out
    assert "noise rho_tau rho=1.0 tau=0.5" in out
    assert len([line for line in out.splitlines() if "4/4" in line]) == 6


def test_many_clients_are_summarised(capsys):
    out = scene(capsys, *MORE, "num_clients=40")
    assert "median" in out
    assert "smallest" in out
    assert len([line for line in out.splitlines() if "/4" in line]) < 15
    out = scene(capsys, *MORE, "num_clients=40", "--clients", "7,30,7")
    rows = [line.split()[0] for line in out.splitlines() if "/4" in line]
    assert rows == ["7", "30"]


def test_figures_and_a_table_of_all_clients_are_written(capsys, tmp_path):
    out = scene(capsys, *MORE, "num_clients=40", "--out", str(tmp_path / "new" / "folder"))
    folder = tmp_path / "new" / "folder"
    names = {"classes_bubbles", "classes_bars", "noise", "transitions"}
    assert {path.name for path in folder.iterdir()} == {
        "clients.csv", *(f"{name}.{suffix}" for name in names for suffix in ("svg", "png"))
    }  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
    with (folder / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert sum(int(row["size"]) for row in rows) == 240
    assert "transitions.svg" in out


def test_a_saved_scenario_is_shown_and_saved_again_as_it_was(capsys, tmp_path):
    first, again = tmp_path / "a.npz", tmp_path / "b.npz"
    out = scene(capsys, *MORE, "partition=shards", "num_clients=5", "--save", str(first))
    assert f"scenario=file scenario.path={first}" in out
    shown = scene(capsys, *MORE, "scenario=file", f"scenario.path={first}", "--save", str(again))
    assert shown.splitlines()[:5] == out.splitlines()[:5]
    assert "partition shards per_client=2" in shown
    assert first.read_bytes() == again.read_bytes()


def test_an_oracle_shows_where_it_comes_from(capsys):
    origin = prepare(compose(MORE)).scenario.fingerprint
    out = scene(capsys, *MORE, "scenario.oracle=drop_noisy")
    assert f"made from the scenario with fingerprint {origin}" in out
    assert "0.0% of the labels are wrong" in out


def test_out_that_is_a_file_is_a_message(capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert main(["scene", *MORE, "--out", str(path)]) == 2
    assert "cannot write to --out" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["scene", "--help"])
    out = capsys.readouterr().out
    for word in ("--save", "--out", "--clients", "--config-dir", "scenario=file", "nominal", "fingerprint"):
        assert word in out


def test_config_dirs_are_searched(capsys, tmp_path):
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "mine.yaml").write_text("_target_: fnll.scenario.noise.models.NoNoise\n")
    out = scene(capsys, *MORE, "noise=mine", "--config-dir", str(tmp_path), "--save", str(Path(tmp_path) / "a.npz"))
    assert "noise mine" in out
    assert f"fnll run --config-dir={tmp_path} dataset=synthetic" in out


def test_scenarios_are_compared_in_one_picture(capsys, tmp_path):
    words = [*MORE, "partition=bernoulli_dirichlet", "--beside", "partition.p=0.9", "--beside", "partition.p=0.3"]
    scene(capsys, *words, "--out", str(tmp_path))
    assert {"compared_bars.svg", "compared_bars.png", "compared_bubbles.svg"} <= {p.name for p in tmp_path.iterdir()}
    assert main(["scene", *MORE, "--beside", "partition.p=0.9", "--out", str(tmp_path)]) == 2
    assert "twice or more" in capsys.readouterr().err


def test_compared_panels_share_a_scale_and_carry_their_words():
    figure = compared_bars({"small": large(size=20), "large": large(size=40)})
    assert [ax.get_title() for ax in figure.axes] == ["small", "large"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1


def test_compared_bubbles_have_a_dot_for_every_client_and_class_that_it_holds():
    one = made([0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0.0, 0.0])
    other = made([0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0.0, 0.0])
    figure = compared_bubbles({"one": one, "other": other})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["one", "other"]
    places = [sorted(map(tuple, ax.collections[0].get_offsets().tolist())) for ax in figure.axes]
    assert places == [[(0, 0), (0, 1), (1, 1)], [(0, 0), (1, 1)]]
