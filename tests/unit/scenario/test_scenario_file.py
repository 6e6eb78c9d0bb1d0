"""Scenario files: what goes in comes out, on the same data only, and damage is noticed."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.utils import instantiate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fnll.errors import UserError
from fnll.harness.composer import Composer
from fnll.harness.execute import execute
from fnll.harness.prepare import Run, prepare, scenario_of
from fnll.harness.provenance import made_with
from fnll.images import InMemory, Transform
from fnll.scenario import Dataset, Scenario, Truth, build
from fnll.scenario.file import load, save
from fnll.scenario.file_format import about, read, truth_digest
from fnll.scenario.noise.models import Native, RhoTau
from fnll.scenario.partition.partitions import Iid
from tiny import DATA as TINY_DATA
from tiny import compose

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
NOISES = sorted(path.stem for path in (CONFIGS / "noise").glob("*.yaml"))
PARTITIONS = sorted({path.stem for path in (CONFIGS / "partition").glob("*.yaml")} - {"given"})  # which draws nothing
NOISE = RhoTau(0.6, 0.5, "exact", "all")
DATA = [*TINY_DATA, "dataset.samples=200"]
MADE = [*DATA, "partition=shards", "partition.per_client=3", "noise.rho=0.8", "num_clients=8", "scenario_seed=5"]


def dataset(n: int = 400, **options: Any) -> Dataset:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (n, 1, 2, 2), dtype=np.uint8))
    labels = torch.from_numpy(rng.permutation(np.arange(n) % 10))
    human = {"worse": (labels + (torch.arange(n) % 3 == 0)) % 10}
    transform = Transform((0.0,), (1.0,))
    test = InMemory(pixels[:20])
    return Dataset("tiny", InMemory(pixels), labels, test, labels[:20], 10, transform, annotations=human, **options)


def configured(group: str, name: str) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return instantiate(hydra_compose(f"{group}/{name}")[group])


def written(path: Path, data: Dataset, noise: Any = NOISE, partition: Any = None, clients: int = 10) -> Path:
    built = build(data, partition or Iid(1), noise, num_clients=clients, seed=3)
    return save(path / "scenario.npz", data, *built)


def assert_same(one: tuple[Scenario, Truth], other: tuple[Scenario, Truth]) -> None:
    (a, truth_a), (b, truth_b) = one, other
    assert (a.fingerprint, a.origin, a.num_classes, a.name) == (b.fingerprint, b.origin, b.num_classes, b.name)
    assert torch.equal(a.labels, b.labels)
    assert len(a.shards) == len(b.shards)
    assert all(torch.equal(x, y) for x, y in zip(a.shards, b.shards, strict=True))
    assert (truth_a.labels is None) == (truth_b.labels is None)
    assert truth_a.labels is None or torch.equal(truth_a.labels, truth_b.labels)
    torch.testing.assert_close(truth_a.nominal, truth_b.nominal, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(truth_a.realised, truth_b.realised, rtol=0, atol=0, equal_nan=True)
    assert (truth_a.validation is None) == (truth_b.validation is None)
    assert truth_a.validation is None or torch.equal(truth_a.validation, truth_b.validation)


@pytest.mark.parametrize("name", NOISES)
def test_every_noise_model_comes_back_as_it_was(tmp_path, name):
    data = dataset(native_noise=name == "native")
    built = build(data, Iid(1), configured("noise", name), num_clients=10, seed=3)
    path = save(tmp_path / "scenario.npz", data, *built)
    assert_same(built, load(data, path=str(path)))
    assert about(path)["fingerprint"] == built[0].fingerprint


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_comes_back_in_its_order(tmp_path, name):
    """The released codes' partitions are not sorted, and the order decides which labels a client's batches hold."""
    data = dataset()
    built = build(data, configured("partition", name), NOISE, num_clients=10, seed=3)
    path = save(tmp_path / "scenario.npz", data, *built)
    assert_same(built, load(data, path=str(path)))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("oracle", ["none", "drop_noisy", "true_labels"])
def test_oracles_and_pooled_data_are_derived_from_a_file_as_from_what_was_built(tmp_path, oracle, pooled):
    data = dataset()
    path = written(tmp_path, data)
    built = build(data, Iid(1), NOISE, num_clients=10, seed=3, oracle=oracle, pooled=pooled)
    assert_same(built, load(data, path=str(path), oracle=oracle, pooled=pooled))


def test_an_oracle_on_a_file_needs_the_truth_and_a_known_name(tmp_path):
    data = dataset(native_noise=True)
    path = written(tmp_path, data, Native())
    with pytest.raises(UserError, match=r"scenario\.oracle=drop_noisy needs clean labels"):
        load(data, path=str(path), oracle="drop_noisy")
    with pytest.raises(UserError, match=r"scenario\.oracle must be one of none, drop_noisy, true_labels, got 'all'"):
        load(data, path=str(path), oracle="all")


def test_a_derived_scenario_is_not_saved(tmp_path):
    data = dataset()
    for options in ({"oracle": "drop_noisy"}, {"pooled": True}):
        built = build(data, Iid(1), NOISE, num_clients=10, seed=3, **options)
        with pytest.raises(UserError, match=r"save it with scenario\.oracle=none scenario\.pooled=false"):
            save(tmp_path / "scenario.npz", data, *built)


def test_the_validation_split_is_in_the_file(tmp_path):
    plain = dataset()
    data = replace(plain, validation=torch.arange(0, 400, 10))
    built = build(data, Iid(1), NOISE, num_clients=10, seed=3)
    path = save(tmp_path / "scenario.npz", data, *built)
    assert sum(built[0].sizes) == 360
    assert_same(built, load(data, path=str(path)))
    assert_same(built, load(plain, path=str(path)))  # asking for none takes the file's
    other = replace(plain, validation=torch.arange(1, 400, 10))
    with pytest.raises(UserError, match="holds out 40 samples for validation, not those that"):
        load(other, path=str(path))
    without = written(tmp_path / "without", plain)
    with pytest.raises(UserError, match=r"holds out no samples.*leave out dataset\.validation"):
        load(data, path=str(without))


@pytest.mark.parametrize("part", ["images", "labels", "test images", "test labels"])
def test_a_file_made_for_other_data_is_refused(tmp_path, part):
    data = dataset()
    path = written(tmp_path, data)
    other = {
        "images": replace(data, train=InMemory(data.train.pixels + 1)),
        "labels": replace(data, labels=data.labels.flip(0)),
        "test images": replace(data, test=InMemory(data.test.pixels + 1)),
        "test labels": replace(data, test_labels=data.test_labels.flip(0)),
    }[part]
    with pytest.raises(UserError, match=r"made for other images or labels.*type dataset=tiny"):
        load(other, path=str(path))


def test_the_same_scenario_is_the_same_file_and_another_never_replaces_it(tmp_path):
    data = dataset()
    path = written(tmp_path, data)
    before = path.read_bytes()
    assert written(tmp_path, data) == path
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="exists and holds something else"):
        written(tmp_path, data, clients=9)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["scenario.npz"]


def test_a_place_that_cannot_be_written_is_a_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the scenario file"):
        written(tmp_path / "file", dataset())


def test_a_scenario_of_the_size_of_cifar10_takes_little_room(tmp_path):
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.arange(50_000) % 10))
    images = InMemory(torch.zeros(50_000, 1, 1, 1, dtype=torch.uint8))
    data = Dataset("large", images, labels, images, labels, 10, Transform((0.0,), (1.0,)))
    for name in ("iid", "iid_official"):  # sorted and shuffled indices
        path = written(tmp_path / name, data, partition=configured("partition", name), clients=100)
        assert path.stat().st_size < 200_000


def test_numpy_and_unzip_can_read_it(tmp_path):
    data = dataset()
    path = written(tmp_path, data)
    with np.load(path, allow_pickle=False) as file:
        assert file["observed"].shape == file["clean"].shape == (400,)
        assert file["indices"].shape == (400,)
        assert file["sizes"].tolist() == [40] * 10
        assert file["nominal"].shape == file["realised"].shape == (10,)
    facts = json.loads(zipfile.ZipFile(path).read("scenario.json"))
    assert facts["dataset"] == {"name": "tiny", "digest": data.digest, "samples": 400, "classes": 10}
    assert facts["clients"] == 10


# Damage


def rewritten(path: Path, change: Any = None, *, sealed: bool = True, **arrays: np.ndarray) -> Path:
    """The file with other facts or arrays in it, as sound zip; `sealed`: with a hash that fits them."""
    with np.load(path, allow_pickle=False) as file:
        content = {name: file[name] for name in file.files if name != "scenario.json"} | arrays
    facts = about(path)
    if change is not None:
        change(facts)
    if sealed:
        facts["truth"] = truth_digest(facts, content)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("scenario.json", json.dumps(facts))
    other = path.with_name("rewritten.npz")
    other.write_bytes(buffer.getvalue())
    return other


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255), cut=st.booleans())
def test_damaged_bytes_are_refused_or_harmless(tmp_path, where, value, cut):
    data = dataset(60)
    path = written(tmp_path, data, clients=4)
    mark = about(path)["fingerprint"]
    content = bytearray(path.read_bytes())
    at = int(where * len(content))
    if cut:
        del content[at:]
    else:
        content[at] ^= value
    broken = tmp_path / "broken.npz"
    broken.write_bytes(content)
    try:
        scenario, _ = load(data, path=str(broken))
    except UserError:
        return
    assert scenario.fingerprint == mark  # a byte that means nothing, such as a date in the zip


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_scenario_file_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is corrupted or not a scenario file"):
        read(path)


def test_missing_files_and_folders_are_messages(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "none.npz")
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path)


def test_nothing_is_ever_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    path = rewritten(written(tmp_path, dataset()), sealed=False, nominal=np.array([Bomb()], dtype=object))
    with pytest.raises(UserError, match="is corrupted or not a scenario file"):
        read(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"observed": np.full(400, 10)}, "labels do not fit"),
        ({"observed": np.zeros(399, int)}, "labels do not fit"),
        ({"clean": np.full(400, 12)}, "labels do not fit"),
        ({"indices": np.full(400, 5)}, "samples do not fit"),
        ({"indices": np.arange(1, 401)}, "samples do not fit"),
        ({"nominal": np.zeros(9)}, "different numbers of clients"),
        ({"sizes": np.array([400])}, "different numbers of clients"),
        ({"sizes": np.array([10])}, ""),
        ({"observed": np.zeros(400, int)}, "its content has fingerprint"),
    ],
)
def test_content_that_contradicts_itself_is_refused(tmp_path, arrays, reason):
    data = dataset()
    path = rewritten(written(tmp_path, data), **arrays)
    with pytest.raises(UserError, match=rf"is corrupted or not a scenario file.*{reason}"):
        load(data, path=str(path))


def test_a_file_of_a_later_format_asks_for_an_update(tmp_path):
    path = rewritten(written(tmp_path, dataset()), lambda facts: facts.update(format=3, fnll="9.9"))
    with pytest.raises(UserError, match=r"written by fnll 9\.9, which is newer"):
        read(path)


@pytest.mark.parametrize("name", ["clean", "nominal", "realised", "made"])
def test_an_altered_truth_is_noticed(tmp_path, name):
    data = dataset()
    path = written(tmp_path, data)
    with np.load(path) as file:
        arrays = {} if name == "made" else {name: np.roll(file[name], 1)}
    change = (lambda facts: facts["made"].update(noise={"rho": 0.1})) if name == "made" else None
    other = rewritten(path, change, sealed=False, **arrays)
    with pytest.raises(UserError, match="its clean labels, noise levels or settings are not those it was saved with"):
        load(data, path=str(other))


def test_clean_labels_are_those_of_the_data_however_well_they_are_hashed(tmp_path):
    data = dataset()
    path = written(tmp_path, data)
    with pytest.raises(UserError, match="its clean labels are not those of the data set"):
        load(data, path=str(rewritten(path, clean=(data.labels.numpy() + 1) % 10)))


def test_a_file_without_the_hash_is_unverified(tmp_path, caplog):
    data = dataset()
    path = rewritten(written(tmp_path, data), lambda facts: (facts.pop("truth"), facts.update(format=1)), sealed=False)
    load(data, path=str(path))
    assert "are unverified" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["made"].update({"": 1}),
        lambda facts: facts["dataset"].update(digest=3),
        lambda facts: facts.update(fingerprint=[1]),
        lambda facts: facts.update(format="x"),
        lambda facts: facts.update(clients="x"),
    ],
)
def test_odd_words_about_it_are_no_crash(tmp_path, change):
    data = dataset()
    path = rewritten(written(tmp_path, data), change, sealed=False)
    with pytest.raises(UserError, match="is corrupted or not a scenario file"):
        load(data, path=str(path))


def test_members_that_nobody_needs_are_not_unpacked(tmp_path, monkeypatch):
    data = dataset()
    path = rewritten(written(tmp_path, data), bomb=np.zeros(1 << 20, np.int8))
    load(data, path=str(path))
    monkeypatch.setattr("fnll.scenario.file_format.LARGEST", 100)
    with pytest.raises(UserError, match="unpacks to more than any data set needs"):
        load(data, path=str(path))


# As a choice of the config


def saved(tmp_path: Path, *words: str) -> tuple[Path, Run]:
    request = compose([*MADE, *words])
    data = instantiate(request.cfg.dataset)
    path = save(tmp_path / "ours.npz", data, *scenario_of(request.cfg, data), made_with(request))
    return path, prepare(request)


def test_a_run_on_a_file_is_the_same_run(tmp_path):
    path, built = saved(tmp_path)
    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={path}"]))
    assert_same((built.scenario, built.truth), (loaded.scenario, loaded.truth))
    assert loaded.run_id == built.run_id
    assert loaded.cohort_size == 4
    assert loaded.cfg.partition == built.cfg.partition
    assert loaded.cfg.noise.rho == 0.8
    assert loaded.request.choices["partition"] == "shards"
    assert "scenario=file" in loaded.request.command
    moved = path.rename(tmp_path / "elsewhere.npz")
    assert prepare(compose([*DATA, "scenario=file", f"scenario.path={moved}"])).run_id == built.run_id
    other_seed = prepare(compose([*DATA, "scenario=file", f"scenario.path={moved}", "seed=1"]))
    assert other_seed.scenario.fingerprint == built.scenario.fingerprint
    assert other_seed.run_id != built.run_id


def test_the_validation_split_of_a_file_is_part_of_the_run(tmp_path):
    path, built = saved(tmp_path, "dataset.validation=0.1")
    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={path}"]))
    assert len(loaded.truth.validation) == 20
    assert loaded.run_id == built.run_id


@pytest.mark.parametrize("name", ["nominal", "validation"])
def test_a_file_with_another_truth_does_not_pass_for_the_same_run(tmp_path, name):
    words = ["dataset.validation=0.1", "rounds=1", "local.epochs=1", "model=mlp", f"runs_dir={tmp_path / 'runs'}"]
    path, built = saved(tmp_path, *words)
    expected = execute(built)
    on_file = [*DATA, *words[1:], "scenario=file"]
    assert execute(prepare(compose([*on_file, f"scenario.path={path}"]))) == expected, "the run is known"
    with np.load(path) as file:
        other = rewritten(path, **{name: np.roll(file[name], 1)[:-1] if name == "validation" else file[name] / 2})
    run = prepare(compose([*on_file, f"scenario.path={other}"]))
    assert run.run_id == built.run_id
    with pytest.raises(UserError, match="was computed with other noise levels or held-out samples than this scenario"):
        execute(run)
    elsewhere = prepare(compose([*on_file, f"scenario.path={other}", f"runs_dir={tmp_path / 'others'}"]))
    assert execute(elsewhere)["finished"]


def test_an_oracle_on_a_file_is_the_same_run(tmp_path):
    path, _ = saved(tmp_path)
    built = prepare(compose([*MADE, "method=oracle"]))
    assert prepare(compose([*DATA, "method=oracle", "scenario=file", f"scenario.path={path}"])).run_id == built.run_id


@pytest.mark.parametrize("word", ["noise.rho=0.3", "partition=iid", "num_clients=9", "scenario_seed=6", "noise=none"])
def test_typed_settings_that_the_file_contradicts_are_refused(tmp_path, word):
    path, _ = saved(tmp_path)
    key = word.split("=")[0].split(".")[0]
    with pytest.raises(UserError, match=rf"scenario=file takes {key} from the file.*leave out {word}"):
        prepare(compose([*DATA, "scenario=file", f"scenario.path={path}", word]))


def test_typed_settings_that_agree_with_the_file_are_welcome(tmp_path):
    path, built = saved(tmp_path)
    assert prepare(compose([*MADE, "scenario=file", f"scenario.path={path}"])).run_id == built.run_id


def test_a_file_from_before_a_move_gives_the_same_run(tmp_path):
    path, built = saved(tmp_path)

    def move(facts: dict[str, Any]) -> None:
        facts["made"]["noise"]["_target_"] = "fnll.where.it.was.RhoTau"
        facts["made"]["partition"]["_target_"] = "fnll.elsewhere.Shards"

    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={rewritten(path, move)}"]))
    assert loaded.run_id == built.run_id
    assert loaded.cfg.noise == built.cfg.noise


@pytest.mark.parametrize(
    "target", ["theirs.RhoTau", "fnll.where.it.was.Nothing", "fnll", "", 3, ["fnll.x.RhoTau"], None]
)
def test_only_a_class_of_ours_is_looked_for_elsewhere(tmp_path, target):
    path, _ = saved(tmp_path)
    renamed = rewritten(path, lambda facts: facts["made"]["noise"].update(_target_=target))
    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={renamed}"]))
    assert "_target_" not in loaded.cfg.noise
    assert loaded.cfg.noise.rho == 0.8


def test_other_data_are_refused_with_the_words_that_fit(tmp_path):
    path, _ = saved(tmp_path)
    with pytest.raises(UserError, match=r"type dataset=synthetic .*dataset\.samples=200"):
        prepare(compose(["scenario=file", f"scenario.path={path}"]))


def test_a_file_needs_its_path():
    with pytest.raises(UserError, match=r"scenario\.path has no value; type scenario\.path="):
        compose(["scenario=file"])
    with pytest.raises(UserError, match=r"scenario=build has no setting 'path'; .* have it: file$"):
        compose(["scenario.path=ours.npz"])


def test_a_file_that_does_not_say_how_it_was_made_works_as_well(tmp_path):
    request = compose(MADE)
    data = instantiate(request.cfg.dataset)
    path = save(tmp_path / "ours.npz", data, *scenario_of(request.cfg, data))
    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={path}"]))
    assert loaded.cfg.num_clients == 8
    assert loaded.cfg.noise == {"fingerprint": loaded.scenario.fingerprint}
    assert loaded.request.choices["noise"] == "file"


def test_a_noise_model_of_ones_own_is_known_where_it_is_installed_and_not_needed_elsewhere(tmp_path):
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "mine.yaml").write_text("_target_: fnll.testing.worlds.Mine\nstrength: 1\n")
    path, _ = saved(tmp_path)
    ours = rewritten(path, lambda facts: facts["made"].update(
        noise={"_target_": "fnll.testing.worlds.Mine", "strength": 1}, choices={"noise": "mine"}
    ))  # fmt: skip
    words = [*DATA, "scenario=file", f"scenario.path={ours}"]
    assert prepare(Composer([tmp_path])(words)).cfg.noise._target_ == "fnll.testing.worlds.Mine"
    elsewhere = prepare(compose(words))
    assert elsewhere.cfg.noise == {"strength": 1}
    assert elsewhere.request.choices["noise"] == "mine"


def test_a_file_names_no_place_of_the_machine_that_made_it(tmp_path):
    request = compose([*MADE, "noise=h_idn_official", "noise.soft_labels=/home/me/soft.csv", "+dataset.root=/home/me"])
    made = made_with(request)
    assert made["noise"]["soft_labels"] == "soft.csv"
    assert "/home" not in json.dumps(made)


def test_a_file_cannot_name_code_or_reach_into_the_environment(tmp_path):
    path, _ = saved(tmp_path)

    def name_code(facts: dict[str, Any]) -> None:
        facts["made"]["noise"] = {"_target_": "os.system", "rho": 0.5, "deep": [{"_target_": "os.remove"}]}

    loaded = prepare(compose([*DATA, "scenario=file", f"scenario.path={rewritten(path, name_code)}"]))
    assert loaded.cfg.noise == {"rho": 0.5, "deep": [{}]}
    leaking = rewritten(path, lambda facts: facts["made"]["noise"].update(rho="${oc.env:HOME}"))
    with pytest.raises(UserError, match="is corrupted or not a scenario file"):
        prepare(compose([*DATA, "scenario=file", f"scenario.path={leaking}"]))
    nonsense = rewritten(path, lambda facts: facts["made"].update(scenario_seed="x"))
    with pytest.raises(UserError, match="has invalid build settings"):
        prepare(compose([*DATA, "scenario=file", f"scenario.path={nonsense}"]))
