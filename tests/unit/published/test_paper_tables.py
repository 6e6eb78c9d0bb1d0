"""Every cell of every table and figure of the papers, against a record of what the papers say (tests/records).

The cells are put together from the YAML files by a few lines of our own here, all of them in a few seconds; that Hydra
puts them together likewise is tried on some, and on all by a slow test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.harness.choices import GROUPS, config_dir, inherited, options
from fnll.harness.composer import Composer
from fnll.harness.config import compose
from fnll.harness.label import flattened, labelled
from fnll.published import table, tables
from fnll.sweep.grid import PlannedRun, expand
from fnll.sweep.paper_tables import smaller

RECORDS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parents[2] / "records").glob("*.yaml")
}
TABLES = [f"{paper}_{name}" for paper, record in RECORDS.items() for name in record["tables"]]
HOME = config_dir()
COMPOSE = Composer()  # Hydra, once for all cells that choose the same files

Flat = dict[str, Any]


@cache
def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) or {}


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict) and name != "defaults":
            yield from leaves(value, f"{prefix}{name}.")
        elif name != "defaults" and not str(name).startswith("_"):
            yield f"{prefix}{name}", value


@cache
def values_of(group: str, name: str) -> Flat:
    """The values of a choice of a group."""
    chosen = options(group)[name]
    prefix = "" if "@package _global_" in chosen.read_text() else f"{group}."
    found = dict(leaves(inherited(chosen), prefix))
    return {key: value for key, value in found.items() if key != "method.name"}  # for tables, see `take_names`


def overridden(node: Any) -> Flat:
    entries = [entry for entry in node.get("defaults", []) if isinstance(entry, dict)]
    return {key.removeprefix("override /"): value for entry in entries for key, value in entry.items()}


def bases(node: Any, group: str) -> list[Path]:
    return [
        HOME / group / f"{base}.yaml" for base in node.get("defaults", []) if isinstance(base, str) and base != "_self_"
    ]


def global_values(path: Path) -> Flat:
    """The values of a world's or a method's file in it, with those it starts from."""
    node = read(path) if path.exists() else {}
    found: Flat = {}
    for base in bases(node, "paper"):
        found |= global_values(base)
    return found | dict(leaves(node))


def world_choices(path: Path) -> Flat:
    node = read(path)
    found: Flat = {}
    for base in bases(node, "paper"):
        found |= world_choices(base)
    return found | overridden(node)


def put_together(experiment: str, cell: Flat) -> Flat:
    """What Hydra makes of a cell of an experiment, by hand."""
    run, node = read(HOME / "run.yaml"), read(HOME / "experiment" / f"{experiment}.yaml")
    choices = {k: v for entry in run["defaults"] if isinstance(entry, dict) for k, v in entry.items() if k in GROUPS}
    stated = {**overridden(node), **cell}
    world = stated["paper"]
    choices |= world_choices(HOME / "paper" / f"{world}.yaml")
    choices |= {key: value for key, value in stated.items() if key in GROUPS}
    done = dict(leaves({key: value for key, value in run.items() if key != "defaults"}))
    for group in ("scenario", "dataset", "partition", "noise", "model", "local", "method"):
        done |= values_of(group, choices[group])
    done |= global_values(HOME / "paper" / f"{world}.yaml")
    for group in ("partition", "noise"):
        part = HOME / "paper" / world / group / f"{choices[group]}.yaml"
        done |= dict(leaves(read(part), f"{group}.")) if part.exists() else {}
    done |= global_values(HOME / "paper" / world / f"{choices['method']}.yaml")
    if inner := cell.get("method@method.usual"):
        done.pop("method.usual")
        done |= {key.replace("method.", "method.usual.", 1): v for key, v in values_of("method", inner).items()}
    done |= {key: value for key, value in cell.items() if key not in GROUPS and "@" not in key}
    return done | {group: name for group, name in choices.items() if group != "experiment"}


def cells(name: str) -> list[Flat]:
    return flattened(read(HOME / "experiment" / "paper" / f"{name}.yaml")["sweep"]["cells"])


def expected(name: str, have: Flat) -> Flat:
    """What the record says of a cell: its world's, its method's, its own."""
    paper, _, short = name.partition("_")
    record, data = RECORDS[paper], have["paper"].partition("/")[2]
    methods = record["methods"][have["method"]]
    said = {**record["worlds"][data], **methods.get("all", {}), **methods.get(data, {})}
    for change in record["tables"][short].get("changes", []):
        if all(matches(have.get(key), value) for key, value in change["when"].items()):
            said |= {key: value for key, value in change.items() if key != "when"}
    varied = record["tables"][short].get("varies", [])  # compared with the published numbers' settings, below
    return {key: value for key, (value, _) in said.items() if key not in varied}


def matches(have: Any, want: Any) -> bool:
    if isinstance(want, dict):  # of the published numbers: {not: [...]}
        return have not in want["not"]
    return have in want if isinstance(want, list) and want and not isinstance(have, list) else have == want


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_as_the_paper_says(name):
    found, (paper, _, short) = cells(name), name.partition("_")
    assert len(found) == RECORDS[paper]["tables"][short]["cells"]
    for cell in found:
        have = put_together(f"paper/{name}", cell)
        want = expected(name, have)
        wrong = {key: (have.get(key, "nothing"), value) for key, value in want.items() if have.get(key) != value}
        assert not wrong, f"{name} {cell}: have, and the paper's: {wrong}"


@pytest.mark.parametrize("name", [name for name in tables() if name != "fedrn_table10"])
def test_cells_and_published_numbers_are_of_the_same_settings(name):
    """Every printed number has exactly one cell, and every cell a printed number."""
    have = [put_together(f"paper/{name}", cell) for cell in cells(name)]
    used = set()
    for record in table(name).records:
        if record.value is None or record.mean_of_row or (name == "fedcorr_table5" and "centralised" in record.row):
            continue  # not printed, of no run, or quoted from elsewhere
        want = {**record.world, **record.settings}
        want.pop("rounds", None)  # a number of the table's, and not of every row
        found = [i for i, one in enumerate(have) if all(matches(one.get(key), value) for key, value in want.items())]
        assert len(found) == 1, f"{record.row}, {record.column}: {len(found)} cells with {want}"
        used.add(found[0])
        assert have[found[0]]["paper.trials"] == (record.trials or have[found[0]]["paper.trials"])
    assert used
    if name not in ("fedcorr_table11", "fedcorr_table12", "fedcorr_table13"):  # these have cells that are not printed
        assert used == set(range(len(have)))


SOME = [
    ("fedcorr_table2", -1),
    ("fedcorr_table6", 28),
    ("fedcorr_fig4", -1),
    ("fedrn_table2", 40),
    ("fedrn_table7", 0),
    ("fednoro_table4", -4),
]


@pytest.mark.parametrize(("name", "place"), SOME)
def test_hydra_puts_cells_together_likewise(name, place):
    composed_as_by_hand(name, place)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_hydra_puts_every_cell_together_likewise(name):
    for place in range(len(cells(name))):
        composed_as_by_hand(name, place)


@cache
def runs(name: str) -> tuple[PlannedRun, ...]:
    return expand([f"experiment=paper/{name}"]).runs


def composed_as_by_hand(name: str, place: int) -> None:
    cell = cells(name)[place]
    words = [word for word in runs(name)[range(len(cells(name)))[place]].words if not word.startswith("seed=")]
    request = labelled(COMPOSE(words))
    by_hand = put_together(f"paper/{name}", cell)
    composed: Any = OmegaConf.to_container(request.cfg)
    resolved = {
        **dict(leaves(composed)),
        **{group: request.choices[group] for group in GROUPS if group in request.choices},
    }
    wrong = {
        key: (resolved.get(key, "nothing"), value)
        for key, value in by_hand.items()
        if resolved.get(key, "nothing") != value
        and not str(value).startswith("${")
        and not key.startswith(("hydra", "sweep", "protocol", "experiment"))
    }
    assert not wrong, f"{words}: Hydra's, and by hand: {wrong}"
    assert request.cfg.protocol == "paper"


def test_all_tables_and_figures_of_the_papers_are_there():
    here = {path.stem for path in (HOME / "experiment" / "paper").glob("*.yaml")}
    wanted = {f"fedcorr_table{i}" for i in (2, 3, 4, 5, 6, 9, 10, 11, 12, 13)} | {
        f"fedcorr_fig{i}" for i in range(2, 11)
    }
    wanted |= {f"fedrn_table{i}" for i in range(2, 11)} | {f"fedrn_fig{i}" for i in (1, 3, 4, 5)}
    wanted |= {f"fednoro_table{i}" for i in range(1, 5)} | {"fednoro_fig3", "fednoro_fig4"}
    wanted.add("fedfixer_mnist")  # logs of a released code
    assert here == wanted == set(TABLES)


def test_the_docs_list_every_table_with_its_cells_and_runs():
    text = (Path(__file__).parents[3] / "docs" / "papers.md").read_text()
    rows = re.findall(r"^\|[^|]*\| `paper/(\w+)` \|[^|]*\| (\d+) \| (\d+) \|[^|]+\|$", text, re.MULTILINE)
    listed = {name: (int(count), int(grid)) for name, count, grid in rows}
    assert len(rows) == len(listed)
    assert listed == {name: (len(cells(name)), len(runs(name))) for name in TABLES}


def test_words_select_cells_of_a_table():
    runs = expand(["experiment=paper/fedcorr_table2", "method=dividemix", "noise.rho=.6", "seed=0"]).runs
    assert [(run.words.count("method.lambda_u=0.0"), "noise.tau=0.5" in run.words) for run in runs] == [
        (1, False), (0, True), (1, False), (0, True),
    ]  # fmt: skip
    assert len(expand(["experiment=paper/fedcorr_table10", "model=lenet5"]).runs) == 7 * 5
    official = expand(["experiment=paper/fedcorr_table10", "model=lenet5", "method=fedcorr_official", "seed=0"]).runs
    assert {run.method for run in official} == {"fedcorr_official"}
    assert len(official) == 7
    with pytest.raises(
        UserError, match=r"the table has no cell with noise\.rho=0\.2; it has noise\.rho=0\.0,0\.4,0\.6"
    ):
        expand(["experiment=paper/fedcorr_table2", "noise.rho=0.2"])


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_small_size_or_says_why_not(name):
    node = read(HOME / "experiment" / "paper" / f"{name}.yaml")
    rules, world = node["sweep"].get("mini"), overridden(node)["paper"]
    words = [{key: f"{key}={value}" for key, value in cell.items()} for cell in cells(name)]
    if isinstance(rules, str):
        with pytest.raises(UserError, match=f"this table has no small size: {rules}"):
            smaller(words, world, rules)
        return
    small, found = smaller(words, world, rules)
    assert small == f"{name.partition('_')[0]}/mini"
    own = {int(full): mini for full, mini in (rules or {}).get("rounds", {}).items()}
    for cell, one in zip(found, cells(name), strict=True):
        assert ("rounds" in cell) == ("rounds" in one)
        assert cell.get("rounds") == (f"rounds={own[one['rounds']]}" if "rounds" in one else None)
        assert "cifar" not in cell.get("paper", "")


def test_the_small_size_has_three_trials_on_digits():
    runs = expand(
        ["experiment=paper/fedcorr_table2", "method=jointopt", "noise.rho=0.8", "noise.tau=0.5", "size=mini"]
    ).runs
    assert len(runs) == 2 * 3
    pooled = [compose(run.words).cfg for run in runs if "paper=fedcorr/mini_centralised" in run.words]
    assert len(pooled) == 3
    assert pooled[0].scenario.pooled
    assert pooled[0].dataset._target_.endswith("digits")
    with pytest.raises(UserError, match="size is full or mini"):
        expand(["experiment=paper/fedcorr_table2", "size=small"])
