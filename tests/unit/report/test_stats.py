"""Statistics on hand-made records with known answers."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.harness.metrics import SCORES
from fnll.harness.run_folder import RunFolder
from fnll.report import RULES, Scores, analyse, cells, differences, interval, load, recovered, scores, target_cost
from fnll.report.blocks import against, block_values, rank, smallest_p
from fnll.testing.store import write_run

T4 = 2.7764451051977987  # 97.5 % quantile of Student's t with 4 degrees of freedom
T2 = 4.302652729696142  # and with 2


def records(values, metric="test/accuracy", rule="last10", kinds=None):
    """Scores of {method: {cell: {seed: value}}}; None is a run that failed, "diverged" one that diverged."""
    rows = [
        {
            "run_id": f"{method}-{cell}-{seed}",
            "method": method,
            "kind": (kinds or {}).get(method, "method"),
            "cell": cell,
            "origin": f"{cell}{seed}",
            "seed": seed,
            "status": "diverged" if value == "diverged" else "failed" if value is None else "finished",
            "reason": "out of memory" if value is None else "",
            "value": np.nan if value is None or value == "diverged" else float(value),
        }
        for method, by_cell in values.items()
        for cell, by_seed in by_cell.items()
        for seed, value in by_seed.items()
    ]
    return Scores(pd.DataFrame(rows), metric, RULES[rule])


def seeds(*values):
    return dict(enumerate(values))


def row(table, method, cell="c"):
    found = table[(table["method"] == method) & (table["cell"] == cell)]
    assert len(found) == 1
    return found.iloc[0]


# --- one cell ---------------------------------------------------------------------------------------------------------


def test_mean_and_sample_standard_deviation():
    cell = row(cells(records({"a": {"c": seeds(1, 2, 3, 4, 5)}})), "a")
    assert (cell["mean"], cell["n"], cell["seeds"]) == (3, 5, 5)
    assert cell["std"] == pytest.approx(math.sqrt(2.5))  # (4 + 1 + 0 + 1 + 4) / 4


def test_one_seed_has_no_standard_deviation():
    assert math.isnan(row(cells(records({"a": {"c": seeds(1)}})), "a")["std"])


def test_the_t_interval_of_five_differences():
    found = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = T4 * math.sqrt(2.5 / 5)
    assert found.mean == 3
    assert (found.low, found.high) == (pytest.approx(3 - half), pytest.approx(3 + half))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_below_three_pairs_there_is_no_interval(n):
    found = interval(np.arange(n, dtype=float))
    assert found.n == n
    assert math.isnan(found.low)
    assert not found.contains_zero


def test_equal_differences_have_an_interval_of_no_width():
    assert interval(np.array([0.5, 0.5, 0.5]))[1:] == (0.5, 0.5, 0.5)
    assert interval(np.zeros(3)).contains_zero


def test_differences_pair_what_both_have():
    data = records({"a": {"c": seeds(5, 7, 9, None)}, "b": {"c": {1: 1, 2: 2, 3: 3, 4: 4}}})
    found = row(differences(data, "b"), "a")
    assert found["pairs"] == 2  # seeds 1 and 2: (7 - 1, 9 - 2)
    assert found["difference"] == 6.5
    assert math.isnan(found["low"])


def test_pairing_is_tighter_than_the_spread_of_either():
    data = records({"a": {"c": seeds(10, 20, 30)}, "b": {"c": seeds(9, 18, 29)}})
    found = row(differences(data, "b"), "a")
    half = T2 * math.sqrt(1 / 3) / math.sqrt(3)  # differences 1, 2, 1: variance 1/3
    assert (found["low"], found["high"]) == (pytest.approx(4 / 3 - half), pytest.approx(4 / 3 + half))


def test_runs_of_the_same_seed_on_other_labels_are_no_pair():
    data = records({"a": {"c": seeds(1, 2, 3)}, "b": {"c": seeds(1, 2, 3)}})
    data.frame.loc[data.frame["method"] == "b", "origin"] = "elsewhere"
    assert row(differences(data, "b"), "a")["pairs"] == 0


def test_best_and_tied_with_the_best():
    data = records(
        {
            "best": {"c": seeds(10, 11, 12)},
            "close": {"c": seeds(10.5, 10.4, 11.9)},  # differences +0.5, -0.6, -0.1: the interval contains 0
            "steady": {"c": seeds(9, 10, 11)},  # always exactly 1 behind: the interval is [-1, -1]
        }
    )
    table = cells(data)
    marks = {method: (row(table, method)["best"], row(table, method)["tied"]) for method in ("best", "close", "steady")}
    assert marks == {"best": (True, False), "close": (False, True), "steady": (False, False)}


def test_two_seeds_make_neither_a_best_nor_a_tie():
    table = cells(records({"a": {"c": seeds(10, 11)}, "b": {"c": seeds(11, 9.9)}}))
    assert not table[["best", "tied"]].to_numpy().any()
    three = cells(records({"a": {"c": seeds(10, 11, 12)}, "b": {"c": seeds(1, 2)}}))
    assert row(three, "a")["best"]


def test_equal_means_are_both_best():
    table = cells(records({"a": {"c": seeds(1, 3, 2)}, "b": {"c": seeds(2, 2, 2)}}))
    assert table["best"].tolist() == [True, True]


def test_for_a_loss_the_lowest_is_best():
    table = cells(records({"a": {"c": seeds(1, 1, 1)}, "b": {"c": seeds(2, 2, 2)}}, metric="test/loss"))
    assert row(table, "a")["best"]
    assert not row(table, "b")["best"]


def test_oracles_do_not_compete():
    data = records({"a": {"c": seeds(1, 2, 3)}, "oracle": {"c": seeds(8, 9, 10)}}, kinds={"oracle": "oracle"})
    table = cells(data)
    assert row(table, "a")["best"]
    assert not row(table, "oracle")["best"]


def test_a_diverged_run_is_never_averaged_away():
    data = records({"a": {"c": seeds(9, 9, "diverged")}, "b": {"c": seeds(1, 1, 1)}})
    table = cells(data)
    assert math.isnan(row(table, "a")["mean"])
    assert row(table, "a")["diverged"] == 1
    assert row(table, "b")["best"]
    assert row(differences(data, "b"), "a")["pairs"] == 0


def test_missing_seeds_are_counted_with_their_reason():
    table = cells(records({"a": {"c": seeds(1, None, 3)}, "b": {"c": seeds(1, 2, 3)}}))
    cell = row(table, "a")
    assert (cell["n"], cell["seeds"], cell["mean"]) == (2, 3, 2)
    assert cell["reason"] == "1 failed: out of memory"
    assert cell["run_ids"] == ("a-c-0", "a-c-1", "a-c-2")


def test_share_of_the_recoverable_gap():
    kinds = {"oracle": "oracle"}
    data = records(
        {
            "fedavg": {"c": seeds(70, 72, 74)},
            "oracle": {"c": seeds(90, 92, 94)},
            "good": {"c": seeds(85, 87, 89)},
            "bad": {"c": {0: 65, 1: 67}},
        },
        kinds=kinds,
    )
    found = recovered(data, "fedavg")
    assert row(found, "good")["share"] == pytest.approx(0.75)
    assert (row(found, "bad")["share"], row(found, "bad")["pairs"]) == (pytest.approx(-0.25), 2)
    assert "oracle" not in set(found["method"])


@pytest.mark.parametrize("oracle", [(70, 72, 74), (60, 62, 64), (70, 73, 74.1)])
def test_without_a_clear_gap_there_is_no_share_of_it(oracle):
    data = records(
        {"fedavg": {"c": seeds(70, 72, 74)}, "oracle": {"c": seeds(*oracle)}, "m": {"c": seeds(71, 73, 75)}},
        kinds={"oracle": "oracle"},
    )
    assert math.isnan(row(recovered(data, "fedavg"), "m")["share"])


def test_the_share_of_a_loss_counts_downwards():
    data = records(
        {"fedavg": {"c": seeds(1.0, 1.0)}, "oracle": {"c": seeds(0.2, 0.2)}, "m": {"c": seeds(0.4, 0.4)}},
        metric="test/loss",
        kinds={"oracle": "oracle"},
    )
    assert row(recovered(data, "fedavg"), "m")["share"] == pytest.approx(0.75)


# --- scenarios as blocks ----------------------------------------------------------------------------------------------


def blocks(**methods):
    """Cells of one seed each, from a list of values per method."""
    return cells(records({m: {f"c{i}": {0: v} for i, v in enumerate(vs) if v != "-"} for m, vs in methods.items()}))


def test_ranks_and_friedman_of_a_constant_order():
    found = rank(blocks(a=[9] * 6, b=[5] * 6, c=[1] * 6))
    assert found.ranks.to_dict() == {"a": 1, "b": 2, "c": 3}
    assert found.friedman == pytest.approx(math.exp(-6))  # χ² = 12·6/(3·4)·(1 + 0 + 1) = 12 with 2 degrees of freedom


def test_tied_values_share_their_ranks():
    found = rank(blocks(a=[9] * 6, b=[9] * 6, c=[1] * 6))
    assert found.ranks.to_dict() == {"a": 1.5, "b": 1.5, "c": 3}


def test_average_ranks_by_hand():
    found = rank(blocks(a=[3, 3, 3, 1, 1, 1], b=[2, 2, 2, 3, 3, 2], c=[1, 1, 1, 2, 2, 3]))
    assert found.ranks.round(9).to_dict() == {"b": round(10 / 6, 9), "a": 2.0, "c": round(14 / 6, 9)}


def test_fewer_than_six_blocks_are_not_ranked():
    assert rank(blocks(a=[1] * 5, b=[2] * 5)) is None
    assert rank(blocks(a=[1] * 6)) is None


def test_a_diverged_cell_ranks_last_and_counts_against_its_method():
    table = blocks(a=["diverged"] + [9] * 6, b=[1] * 7)
    assert block_values(table).loc["c0", "a"] == -math.inf
    assert rank(table).ranks.to_dict() == {"a": pytest.approx(8 / 7), "b": pytest.approx(13 / 7)}


def test_blocks_with_a_gap_are_left_out_and_methods_with_too_many():
    found = rank(blocks(a=[3] * 7, b=[2] * 6 + ["-"], c=[1, 1] + ["-"] * 5))
    assert found.blocks == ("c0", "c1", "c2", "c3", "c4", "c5")
    assert found.left_out == ("c",)
    assert found.ranks.to_dict() == {"a": 1, "b": 2}


def test_signed_rank_of_six_differences_of_one_sign():
    found = against(blocks(a=[2, 3, 4, 5, 6, 7], b=[1, 1, 1, 1, 1, 1]), "b")
    assert (found.loc[0, "n"], found.loc[0, "p"], found.loc[0, "median"]) == (6, pytest.approx(2 / 2**6), 3.5)
    assert smallest_p(6, 1) == 2 / 2**6


def test_signed_rank_with_one_difference_against():
    # d = 1, -2, 3, 4, 5, 6, 7: the negative ranks sum to 2, as do {}, {1}, {2} of the 2⁷ sign patterns or less.
    found = against(blocks(a=[1, -2, 3, 4, 5, 6, 7], b=[0] * 7), "b")
    assert found.loc[0, "p"] == pytest.approx(2 * 3 / 2**7)


def test_holm_corrects_step_by_step():
    found = against(blocks(a=[1, 2, 3, 4, 5, 6, 7], b=[1, -2, 3, 4, 5, 6, 7], ref=[0] * 7), "ref")
    assert found["p"].tolist() == [pytest.approx(2 / 2**7), pytest.approx(6 / 2**7)]
    assert found["p_holm"].tolist() == [pytest.approx(2 * 2 / 2**7), pytest.approx(6 / 2**7)]


def test_below_six_common_blocks_there_is_no_p():
    found = against(blocks(a=[1] * 5, b=[2] * 5), "b")
    assert found["p"].isna().all()
    assert found["p_holm"].isna().all()


def test_methods_that_never_differ_are_not_told_apart():
    assert against(blocks(a=[1] * 6, b=[1] * 6), "b").loc[0, "p"] == 1


def test_a_divergence_is_the_largest_difference():
    # a diverges once and is ahead by 1 to 6 elsewhere: the divergence has rank 7, against 1 + … + 6 = 21.
    # Subsets of {1, …, 7} with a sum of at most 7 number 1+1+1+2+2+3+4+5 = 19.
    found = against(blocks(a=["diverged", 1, 2, 3, 4, 5, 6], b=[0] * 7), "b")
    assert found.loc[0, "p"] == pytest.approx(2 * 19 / 2**7)


def test_lower_is_better_turns_the_ranking():
    data = records({m: {f"c{i}": {0: v} for i in range(6)} for m, v in (("a", 1), ("b", 2))}, metric="test/loss")
    assert rank(cells(data), higher=False).ranks.to_dict() == {"a": 1, "b": 2}
    assert against(cells(data), "b", higher=False).loc[0, "median"] == 1


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=6, max_size=9))
def test_ranks_add_up_and_p_values_grow_by_correction(rows):
    values = pd.DataFrame(rows, columns=["a", "b", "c"])
    table = cells(records({m: {f"c{i}": {0: v} for i, v in enumerate(values[m])} for m in values}))
    found = rank(table)
    assert found.ranks.sum() == pytest.approx(1 + 2 + 3)
    assert 0 <= found.friedman <= 1
    assert len(found.pairs) == 3
    assert (found.pairs["p_holm"] >= found.pairs["p"] - 1e-12).all()
    assert found.pairs["p_holm"].between(0, 1).all()


# --- from folders -----------------------------------------------------------------------------------------------------


def test_selection_rules_by_hand(tmp_path):
    accuracy = [0.1, 0.9] + [0.2 + 0.01 * i for i in range(10)]
    write_run(tmp_path, "fedavg", accuracy, metrics={"val/accuracy": [0.0, 0.1, 0.9] + [0.2] * 9})
    store = load(tmp_path)
    value = {rule: scores(store, rule=rule).frame["value"].iloc[0] for rule in RULES}
    assert value == {"best": 0.9, "last": pytest.approx(0.29), "last10": pytest.approx(0.245), "best_val": 0.2}


@pytest.mark.parametrize("lost", [None, 3, 12, 16])
@pytest.mark.parametrize("step", [1, 3])
def test_rules_agree_with_the_summary_the_run_wrote(tmp_path, step, lost):
    """The harness's own `summarise`, on every place of the grid or on few, with a loss that is not finite at `lost`."""
    accuracy = [0.1 * i for i in range(1, 10)] + [0.5] * 8
    loss = [None if i == lost else 2.3 * (1 - value) for i, value in enumerate(accuracy)]
    steps = range(1, 18)[16 % step :: step]
    some = [at - 1 for at in steps]
    run_id = write_run(
        tmp_path, "fedavg", [accuracy[i] for i in some], steps=steps, metrics={"test/loss": [loss[i] for i in some]}
    )
    summary = RunFolder(tmp_path / run_id).summary()
    store = load(tmp_path)
    for metric in SCORES:
        assert {"best", "last", "last10"} <= summary[metric].keys()
        for rule, expected in summary[metric].items():
            wanted = pytest.approx(np.nan if expected is None else expected, nan_ok=True)
            assert scores(store, metric, rule).frame["value"].iloc[0] == wanted, (metric, rule)


def test_the_last_ten_are_places_on_the_grid_not_lines(tmp_path):
    write_run(tmp_path, "slow", [0.0] * 5 + [1.0] * 5, steps=range(2, 21, 2))  # evaluated every other step
    assert scores(load(tmp_path)).frame["value"].iloc[0] == 1.0


def test_unknown_metrics_and_rules_are_explained(tmp_path):
    write_run(tmp_path, "fedavg", [0.1])
    store = load(tmp_path)
    with pytest.raises(UserError, match="test/accuracy"):
        scores(store, "test/acuracy")
    with pytest.raises(UserError, match="best_val is not possible"):
        scores(store, rule="best_val")
    with pytest.raises(UserError, match="did you mean fedavg"):
        analyse(store, reference="fedavgg")


def test_a_store_without_fedavg_has_no_reference(tmp_path):
    write_run(tmp_path, "fedprox", [0.1])
    assert analyse(load(tmp_path)).reference is None


def test_targeted_cost_is_client_updates_at_the_first_evaluation_that_reaches_it(tmp_path):
    write_run(tmp_path, "quick", [0.5, 0.8, 0.7, 0.9], seed=0)
    write_run(tmp_path, "quick", [0.5, 0.7, 0.7, 0.9], seed=1)
    write_run(tmp_path, "partly", [0.5, 0.5, 0.5, 0.9], seed=0)
    write_run(tmp_path, "partly", [0.5, 0.5, 0.5, 0.5], seed=1)
    write_run(tmp_path, "never", [0.5] * 4, seed=0)
    write_run(tmp_path, "slow", [0.5, 0.5, 0.5, 0.8], seed=0)
    costs = target_cost(load(tmp_path), 0.8).set_index("method")
    assert costs.loc["quick", "mean"] == 30  # steps 2 and 4 of 10 updates each
    assert costs.loc["quick", "std"] == pytest.approx(math.sqrt(200))
    assert (costs.loc["partly", "reached"], costs.loc["partly", "n"]) == (1, 2)
    assert math.isnan(costs.loc["partly", "mean"])
    assert costs.loc["never", "reached"] == 0
    assert costs.loc["slow", "ratio"] == pytest.approx(40 / 30)
