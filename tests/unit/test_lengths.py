"""Lengths as shares of the budget: their numbers, where they are recorded, and budgets that are too small."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_object
from omegaconf import OmegaConf

from fnll.errors import UserError
from fnll.federation import World
from fnll.harness.budget import _fewest, node_in_rounds
from fnll.harness.choices import config_dir, inherited, options
from fnll.harness.execute import execute
from fnll.harness.prepare import prepare
from fnll.harness.run_folder import DeclinedError
from fnll.lengths import Horizon, marked, resolve
from tiny import compose

TINY = ["dataset=synthetic", "dataset.samples=40", "dataset.test_samples=20", "dataset.size=8", "model=mlp"]
SMALL = [*TINY, "num_clients=4", "device=cpu", "eval.overlap=false"]
STAGED = ("coteaching", "dividemix", "fedcorr", "fednoro", "fedrn", "jointopt", "rofl", "selfie")


def lengths(name: str, rounds: int, clients: int = 20, cohort: int = 10, words: tuple[str, ...] = ()) -> dict:
    cfg = compose([f"method={name}", *words]).cfg
    whole = Horizon(rounds * cohort, cohort, World((5,) * clients, 10, (1, 8, 8)))
    node = node_in_rounds(OmegaConf.to_container(cfg.method, resolve=True), whole)
    return {key: node[key] for key in marked(get_object(node["_target_"]))} | {"usual": node.get("usual")}


@pytest.mark.parametrize(
    ("length", "whole", "number"),
    [("20%", 60, 12), ("17%", 60, 10), ("33%", 60, 20), ("20%", 2, 1), ("0%", 60, 1), ("12.5 %", 8, 1), ("50%", 5, 3)],
)
def test_a_share_is_rounded_to_the_nearest_and_at_least_one(length, whole, number):
    assert resolve(length, Fraction(whole)) == number


@pytest.mark.parametrize("length", ["101%", "-5%", "some%", "%"])
def test_what_is_no_share(length):
    with pytest.raises(UserError, match=r"method\.warmup must be a whole number, or a share such as 20%"):
        resolve(length, 60, key="method.warmup")


@pytest.mark.parametrize(
    ("name", "rounds", "expected"),
    [
        ("fedrn", 60, {"warmup": 12}),
        ("fedrn", 12, {"warmup": 2}),
        ("fednoro", 60, {"warmup": 10, "ramp_begin": 10, "ramp_rounds": 20}),
        ("fednoro", 12, {"warmup": 2, "ramp_begin": 2, "ramp_rounds": 4}),
        ("fednoro_official", 60, {"warmup": 10, "ramp_begin": 10, "ramp_rounds": 39}),
        ("fedcorr", 60, {"passes": 5, "finetune": 25}),
        ("fedcorr", 12, {"passes": 1, "finetune": 5}),
        ("fedcorr", 4, {"passes": 1, "finetune": 1}),
        ("rofl", 60, {"pseudo_from": 12, "forget_ramp": 10}),
        ("dividemix", 60, {"warmup": 12, "ramp": 16.0, "ramp_start": None, "lr_drop": None}),
        ("coteaching", 60, {"gradual": 12}),
        ("selfie", 60, {"warmup": 12}),
        ("jointopt", 60, {"warmup": 12, "retrain": 0}),
        ("fedlsr", 60, {"warmup": 12}),
    ],
)
def test_the_defaults_in_a_budget(name, rounds, expected):
    assert lengths(name, rounds) == {**expected, "usual": None}


def test_an_inner_method_has_shares_of_what_is_left_for_it():
    usual = lengths("fedcorr", 60, words=("method@method.usual=fedrn",))["usual"]
    assert usual["warmup"] == 5  # a fifth of stage 3's 25 rounds


def test_the_papers_worlds_have_numbers_and_not_shares():
    home, looked_at = config_dir() / "paper", 0
    for path in sorted(home.glob("*/*/*.yaml")):
        node = {**inherited(options("method")[path.stem]), **_of_method(path, home)}
        if "_target_" in node:
            shares = [key for key in marked(get_object(node["_target_"])) if isinstance(node.get(key), str)]
            shares = [key for key in shares if not node[key].startswith("${")]
            assert not shares, f"{path} leaves {', '.join(shares)} to the defaults"
            looked_at += 1
    assert looked_at > 10


def _of_method(path: Path, home: Path) -> dict[str, Any]:
    """What a world's file, and those that it starts from, set for its method."""
    node = yaml.safe_load(path.read_text())
    bases = [home / f"{base}.yaml" for base in node.get("defaults", []) if base != "_self_"]
    return {**{key: v for base in bases for key, v in _of_method(base, home).items()}, **node.get("method", {})}


def test_the_number_counts_and_is_recorded(tmp_path: Path):
    words = [*SMALL, "method=fedrn", "rounds=10", f"runs_dir={tmp_path}"]
    share, number = (prepare(compose([*words, f"method.warmup={length}"])) for length in ("20%", "2"))
    assert share.run_id == number.run_id != prepare(compose([*words, "method.warmup=30%"])).run_id
    execute(share)
    assert yaml.safe_load((tmp_path / share.run_id / "config.yaml").read_text())["method"]["warmup"] == 2
    assert json.loads((tmp_path / share.run_id / "manifest.json").read_text())["shares"] == {"method.warmup": "20%"}


@pytest.mark.parametrize("name", STAGED)
def test_every_method_declines_a_budget_that_is_too_small_with_the_smallest_that_would_do(name):
    def of(rounds):
        return prepare(compose([*SMALL, f"method={name}", f"rounds={rounds}"])).too_small()

    reason = of(1)
    assert reason is not None
    assert reason.startswith("its stages need at least ")
    fewest = int(reason.partition("type rounds=")[2].partition(",")[0])
    assert of(fewest) is None
    assert of(fewest - 1) is not None


def test_a_declined_budget_is_no_failure(tmp_path: Path):
    words = [*SMALL, "method=fedrn", "rounds=8", "method.warmup=12", f"runs_dir={tmp_path}"]
    run = prepare(compose(words))
    with pytest.raises(DeclinedError) as error:
        execute(run)
    assert str(error.value) == (
        "fedrn declines this budget: its stages need at least 13 rounds, and it has 8; "
        "type rounds=13, or lower method.warmup (12)"
    )
    assert (tmp_path / run.run_id / "declined.json").exists()


def test_shares_that_leave_no_room_in_any_budget():
    reason = prepare(compose([*SMALL, "method=fedrn", "method.warmup=100%"])).too_small()
    assert reason == "its lengths are shares that leave no room for all its stages in any budget; lower them"


@pytest.mark.parametrize(("needs", "fewest"), [
    (lambda rounds: rounds + 1, None), (lambda rounds: rounds * 11 // 10 + 1, None),  # 100 % and more
    (lambda rounds: rounds * 95 // 100 + 7, 121), (lambda rounds: 3_000_000, 3_000_000),
])  # fmt: skip
def test_the_fewest_rounds_are_found_without_trying_every_budget(needs, fewest):
    tried = []

    class Needy:
        def __init__(self, rounds):
            tried.append(rounds)
            self.rounds = rounds

        def needs(self, world):
            return needs(self.rounds)

    assert _fewest(Needy, 1, None) == fewest
    assert len(tried) < 100


def test_what_a_length_may_be_is_said():
    with pytest.raises(UserError, match=r"whole number of at least 0 or a share such as 20%, got 'long'"):
        prepare(compose([*SMALL, "method=fedrn", "method.warmup=long"]))
