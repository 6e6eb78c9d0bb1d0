"""Checkpoints: exact, content-addressed, and honest about damage."""

import json
import pkgutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch

import fnll
from fnll.federation import Kept, Snapshot, Totals
from fnll.harness.checkpoint import Checkpoints, _name, _states
from fnll.harness.integrity import Written
from fnll.testing import same
from fnll.types import State


@dataclass(frozen=True)
class Rich(State):
    numbers: dict = field(default_factory=dict)
    models: dict[int, dict] = field(default_factory=dict)
    inner: State | None = None


def big(value=1.0):
    return {"b": torch.full((20000,), value), "a": torch.arange(5), "half": torch.ones(3, dtype=torch.bfloat16)}


def snapshot(t=3, **changes) -> Snapshot:
    numbers = {
        "none": None, "yes": True, "int": 7, "float": 0.1, "nan": float("nan"), "inf": float("-inf"), "text": "ρ",
        "list": [1, 2.5, "x"], "tuple": (1, (2, 3)), "set": frozenset({3, 1}), "empty": {}, "np": np.float32(0.1),
        "array": np.arange(6).reshape(2, 3), "scalar": torch.tensor(4.0), "bool": torch.tensor([True, False]),
        "strided": torch.arange(10)[::2], 5: "int key",
    }  # fmt: skip
    shared = big()
    state = Rich(shared, numbers, {0: shared, 4: big(2.0)}, State(big(3.0)))
    clients = {2: Kept({"net": shared, "loss": torch.rand(7)}, torch.tensor([1, 0])), 5: Kept()}
    return Snapshot(t, changes.get("state", state), changes.get("clients", clients), Totals(1, 2, 3, 4))


def test_everything_comes_back_bit_for_bit(tmp_path):
    before = snapshot()
    Checkpoints(tmp_path, "r").save(before, {"metrics.jsonl": Written(11, "ab")})
    restored = Checkpoints(tmp_path, "r").load()
    assert restored.records == {"metrics.jsonl": Written(11, "ab")}
    before.state.numbers["np"] = float(before.state.numbers["np"])  # numpy scalars come back as Python's
    assert same(restored.snapshot, before)
    assert list(restored.snapshot.state.weights) == ["b", "a", "half"], "the order of entries is part of the numbers"


def test_an_unchanged_model_is_written_once(tmp_path):
    store = Checkpoints(tmp_path, "r")
    store.save(snapshot(1), {})
    blobs = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "blobs").iterdir()}
    large = [path for path in (tmp_path / "blobs").iterdir() if path.stat().st_size > 50_000]
    assert len(large) == 3, "four references to three distinct models"
    store.save(snapshot(2), {})
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "blobs").iterdir()}
    assert all(after[path.name] == blobs[path.name] for path in large)


def test_what_was_shared_is_shared_again(tmp_path):
    Checkpoints(tmp_path, "r").save(snapshot(), {})
    restored = Checkpoints(tmp_path, "r").load().snapshot
    assert restored.state.models[0]["b"] is restored.state.weights["b"] is restored.clients[2].memory["net"]["b"]


def test_old_snapshots_and_their_files_are_removed(tmp_path):
    store = Checkpoints(tmp_path, "r")
    for t in range(5):
        store.save(snapshot(t, state=State(big(float(t))), clients={}), {})
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["snapshot-00000003.json", "snapshot-00000004.json"]
    assert len(list((tmp_path / "blobs").iterdir())) == 2


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-20])


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def damage_remove(path):
    path.unlink()


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove, damage_empty])
@pytest.mark.parametrize("which", ["snapshot", "blob"])
def test_damage_is_noticed_and_the_snapshot_before_is_used(tmp_path, damage, which, caplog):
    store = Checkpoints(tmp_path, "r")
    for t in (1, 2):
        store.save(snapshot(t, state=State(big(float(t)))), {})
    newest = tmp_path / "snapshot-00000002.json"
    body = json.loads(json.loads(newest.read_text())["body"])
    own = next(f for f in body["files"] if f == body["state"]["fields"]["weights"]["file"])
    damage(newest if which == "snapshot" else tmp_path / "blobs" / own)
    restored = Checkpoints(tmp_path, "r").load()
    assert restored.snapshot.t == 1
    assert same(restored.snapshot.state.weights, big(1.0))
    if not (which == "snapshot" and damage is damage_remove):
        assert "damaged" in caplog.text


def test_when_all_are_damaged_there_is_none(tmp_path):
    store = Checkpoints(tmp_path, "r")
    for t in (1, 2):
        store.save(snapshot(t), {})
    for path in tmp_path.glob("*.json"):
        damage_flip(path)
    assert Checkpoints(tmp_path, "r").load() is None


def test_another_runs_checkpoint_is_refused(tmp_path):
    Checkpoints(tmp_path, "theirs").save(snapshot(), {})
    assert Checkpoints(tmp_path, "ours").load() is None


def test_loading_makes_states_only_and_imports_nothing(tmp_path):
    Checkpoints(tmp_path, "r").save(snapshot(state=State(big()), clients={}), {})
    path = tmp_path / "snapshot-00000003.json"
    foreign = (
        "subprocess:Popen",
        "fnll.federation:Federation",
        "antigravity:State",
        "builtins:dict",
        "fnll.types:State",
    )
    for name in (*foreign, "Federation", "Popen", "dict", ""):
        outer = json.loads(path.read_text())
        body = json.loads(outer["body"])
        body["state"]["type"] = name
        text = json.dumps(body)
        from fnll.system.foreign import digest

        (tmp_path / "snapshot-00000009.json").write_text(json.dumps({"checksum": digest(text.encode()), "body": text}))
        assert Checkpoints(tmp_path, "r").load().snapshot.t == 3, "it fell back to the good one"


def test_what_cannot_be_written_is_said_clearly(tmp_path):
    with pytest.raises(TypeError, match="a checkpoint cannot hold a function"):
        Checkpoints(tmp_path, "r").save(
            snapshot(state=Rich(big(), {"f": test_damage_is_noticed_and_the_snapshot_before_is_used})), {}
        )


def define(module: str, monkeypatch, fields: str = "more: int = 0") -> type[State]:
    """A state called Mine, in a module of that name."""
    home = ModuleType(module)
    monkeypatch.setitem(sys.modules, module, home)
    text = "@dataclass(frozen=True)\nclass Mine(State):\n    " + fields
    home.__dict__.update(State=State, dataclass=dataclass)
    exec(text, home.__dict__)
    return home.Mine


def test_a_state_of_ours_is_found_where_its_module_lies_now(tmp_path, monkeypatch):
    before = define("fnll.before", monkeypatch)
    kept = {1: Kept({"x": torch.ones(2)})}
    Checkpoints(tmp_path, "r").save(snapshot(state=before(big(), 7), clients=kept), {})
    text = (tmp_path / "snapshot-00000003.json").read_text()
    assert "fnll." not in text
    assert ":Kept" not in text
    monkeypatch.delitem(sys.modules, "fnll.before")
    assert Checkpoints(tmp_path, "r").load() is None, "it is nowhere, though this process remembers it"
    after = define("fnll.after.the.move", monkeypatch)
    restored = Checkpoints(tmp_path, "r").load().snapshot
    assert type(restored.state) is after
    assert restored.state.more == 7
    assert same(restored.clients, kept)


def test_states_of_two_plugins_may_have_one_name(tmp_path, monkeypatch):
    ours, first, second = (define(name, monkeypatch) for name in ("fnll.mine", "plug_first.deep", "plug_second"))
    for cls in (ours, first, second):
        Checkpoints(tmp_path, "r").save(snapshot(state=cls(big(), 7)), {})
        assert type(Checkpoints(tmp_path, "r").load().snapshot.state) is cls


def test_of_a_state_defined_twice_the_last_counts(tmp_path, monkeypatch):
    old = define("plug_reloaded", monkeypatch)
    Checkpoints(tmp_path, "r").save(snapshot(state=old(big(), 7)), {})
    new = define("plug_reloaded", monkeypatch)
    assert type(Checkpoints(tmp_path, "r").load().snapshot.state) is new is not old


def test_a_name_that_two_states_of_ours_have_is_not_guessed_at(tmp_path, monkeypatch, caplog):
    one, _ = define("fnll.one", monkeypatch), define("fnll.other", monkeypatch)
    Checkpoints(tmp_path, "r").save(snapshot(state=one(big(), 7)), {})
    assert Checkpoints(tmp_path, "r").load() is None
    assert "the name of several states" in caplog.text


def test_the_states_of_ours_have_different_names():
    for module in pkgutil.walk_packages(fnll.__path__, "fnll."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    there = [cls for cls in _states(State) if cls.__module__ in sys.modules]
    ours = {(cls.__module__, _name(cls)) for cls in there if ":" not in _name(cls)}
    assert len(ours) > 3, "State and those of the methods"
    assert max(Counter([_name(Kept), *(name for _, name in ours)]).values()) == 1
