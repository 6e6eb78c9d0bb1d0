"""The published numbers: complete, consistent with each other where papers print a value twice, and matchable."""

from __future__ import annotations

from itertools import combinations

import pytest

from fnll.errors import UserError
from fnll.published import Record, differences, matches, table, tables

SHAPES = {  # rows and columns as printed
    "fedcorr_table2": (9, 7), "fedcorr_table3": (9, 4), "fedcorr_table4": (7, 3), "fedcorr_table5": (9, 1),
    "fedcorr_table6": (7, 7), "fedcorr_table9": (7, 1), "fedcorr_table10": (3, 7), "fedcorr_table11": (7, 7),
    "fedcorr_table12": (7, 7), "fedcorr_table13": (7, 4), "fedrn_table2": (9, 12), "fedrn_table3": (9, 4),
    "fedrn_table4": (8, 2), "fedrn_table5": (6, 4), "fedrn_table6": (5, 4), "fedrn_table7": (5, 4),
    "fedrn_table8": (6, 5), "fedrn_table9": (2, 6), "fedrn_table10": (7, 4), "fedrn_fig4": (1, 2),
    "fednoro_table1": (9, 9), "fednoro_table2": (9, 3), "fednoro_table3": (7, 6), "fednoro_table4": (5, 2),
    "fedfixer_mnist": (4, 3),
}  # fmt: skip


def records() -> list[Record]:
    return [record for name in tables() for record in table(name).records]


def one(name: str, row: str, column: str, select: str | None = None) -> Record:
    (found,) = (r for r in table(name).records if (r.row, r.column) == (row, column) and select in (None, r.select))
    return found


def test_every_table_has_the_rows_and_columns_that_are_printed() -> None:
    assert {name: (len(table(name).rows), len(table(name).columns)) for name in tables()} == SHAPES
    assert sum(record.value is not None for record in records()) == 864


@pytest.mark.parametrize(
    ("place", "value", "spread"),
    [
        (("fedcorr_table2", "FedAvg", "ρ=0.8 τ=0.5"), 72.00, 2.76),
        (("fedcorr_table10", "LeNet-5", "ρ=0.6 τ=0.5"), 67.48, 0.54),
        (("fedcorr_table11", "FedProx", "ρ=0.8 τ=0.5"), 4640, None),
        (("fedrn_table2", "FedRN k=2", "S=2 sym. 0.8"), 62.94, None),
        (("fednoro_table1", "FedNoRo", "ρ=0.4 η=0.3-0.5", "last10"), 70.14, None),
        (("fednoro_table3", "Loss + LA + per-class + norm.", "ρ=0.4 MR"), 88.82, None),
    ],
)
def test_values_are_those_that_are_printed(place: tuple[str, str, str], value: float, spread: float | None) -> None:
    record = one(*place)
    assert (record.value, record.spread) == (value, spread)


def test_a_cell_that_two_tables_print_has_one_value() -> None:
    """Ours is in FedCorr's tables 2, 6 and 10, FedRN's k=2 in tables 2, 5, 6, 8 and 9, FedLA's in FedNoRo's 1 and 4."""
    groups: dict[str, list[Record]] = {}
    for record in records():
        key = {**record.world, **record.settings, "metric": record.metric, "select": record.select}
        if record.value is not None and record.target is None and not record.mean_of_row:
            groups.setdefault(str(sorted(key.items(), key=str)), []).append(record)
    shared = [group for group in groups.values() if len(group) > 1]
    assert len(shared) > 40
    for group in shared:
        assert len({(record.value, record.spread) for record in group}) == 1, group


def test_records_of_one_table_tell_their_cells_apart() -> None:
    for name in tables():
        measured = [r for r in table(name).records if not r.mean_of_row and r.select != "cost"]
        for one_record, other in combinations(measured, 2):
            same = {**one_record.settings} == {**other.settings}
            number = (one_record.metric, one_record.select) == (other.metric, other.select)
            assert not (same and number and one_record.world == other.world), (name, one_record, other)


def test_means_and_ratios_are_what_the_table_says() -> None:
    for row in table("fedrn_table8").rows:
        values = [r.value for r in table("fedrn_table8").records if r.row == row and not r.mean_of_row]
        mean = one("fedrn_table8", row, "mean")
        assert bool(mean.erratum) == (mean.value != pytest.approx(sum(v or 0 for v in values) / 4, abs=0.01))
    for name in ("fedcorr_table11", "fedcorr_table12", "fedcorr_table13"):
        ours = {r.column: r for r in table(name).records if r.row == "FedCorr"}
        for record in table(name).records:
            base = ours[record.column]
            if record.ratio is not None and not base.erratum:
                assert record.value is not None
                assert base.value is not None
                assert record.value / base.value == pytest.approx(record.ratio, abs=0.051)


def test_errata_are_with_their_cells() -> None:
    below = [
        best
        for name in ("fednoro_table1", "fednoro_table2", "fednoro_table4")
        for best in table(name).records
        if best.select == "best" and best.value is not None
        and best.value < (one(name, best.row, best.column, "last10").value or 0)
    ]  # fmt: skip
    assert len(below) == 5
    assert all("impossible" in record.erratum for record in below)
    assert "imply 140" in one("fedcorr_table11", "FedCorr", "ρ=0 τ=0").erratum
    assert not one("fedcorr_table11", "FedCorr", "ρ=0.4 τ=0").erratum
    assert all("(0.4, 0)" in record.erratum for record in table("fedcorr_table9").records)


def test_a_run_is_matched_by_the_settings_of_its_cell() -> None:
    record = one("fedcorr_table10", "LeNet-5", "ρ=0.6 τ=0.5")
    run = {
        "method": "fedcorr_official", "model": "lenet5", "partition": "iid_official", "noise": "rho_tau_official",
        "noise.rho": 0.6, "noise.tau": 0.5, "method.correction": True, "method.stage1_cohort": 1, "method.beta": 5.0,
        "method.mixup_stages": (1,), "method.finetune": 500, "dataset": "cifar10", "num_clients": 100, "fraction": 0.1,
        "rounds": 30,
    }  # fmt: skip
    assert matches(record.settings, run)
    assert differences(record.world, run) == {"rounds": (30, 1000)}
    ablations = {"method.mixup_stages": (), "method.finetune": None, "method.beta": 0.0, "method.stage1_cohort": None}
    for key, value in {"noise.tau": 0.0, "model": "vgg11", "method": "fedavg", **ablations}.items():
        assert not matches(record.settings, {**run, key: value}), key
    without = one("fedcorr_table6", "FedCorr w/o usual training", "ρ=0.6 τ=0.5")
    assert matches(without.settings, {**run, "method.finetune": None})
    assert not matches(without.settings, {**run, "method.finetune": 0})


def test_a_run_without_noise_is_one_with_no_noisy_clients() -> None:
    record = one("fednoro_table1", "FedAvg", "ρ=0", "best")
    run = {"method": "fedavg", "partition": "bernoulli_dirichlet", "partition.p": 0.9, "partition.alpha": 2.0}
    assert matches(record.settings, {**run, "noise": "none"})
    assert matches(record.settings, {**run, "noise": "h_idn", "noise.rho": 0.0})
    assert not matches(record.settings, {**run, "noise": "h_idn", "noise.rho": 0.2})
    assert not matches(one("fednoro_table1", "FedAvg", "ρ=0.2 η=0.3-0.5", "best").settings, {**run, "noise": "none"})


def test_an_unknown_table_is_one_sentence() -> None:
    with pytest.raises(UserError, match="fedcorr_table2"):
        table("fedcorr_tabel2")
