"""Objects in one flat memory: what goes in comes out, shared tensors once, copies where copies are promised."""

from __future__ import annotations

import gc
import os
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fnll.executors import arena as module
from fnll.executors.arena import ALIGNMENT, Arena, Packer, unpack
from fnll.types import Update

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.complex64,
]  # fmt: skip
WAYS = ["load", "copy", "view"]


def crossed(value: object, way: str = "load") -> Any:
    """`value` after one trip through shared memory: read, or mapped and copied, or mapped in place."""
    packer = Packer()
    ticket = packer.add(value)
    with Arena.of(packer) as arena:
        return arena.load(ticket) if way == "load" else unpack(arena.map(), ticket, own=way == "copy")


def same(left: Tensor, right: Tensor) -> bool:
    """Equal bit for bit, NaNs and negative zeros included."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    ours, theirs = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (left, right))
    return torch.equal(ours, theirs)


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 200 - 100).to(dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7,), (3, 5, 2)], ids=str)
def test_every_dtype_and_shape_survives(dtype: torch.dtype, shape: tuple[int, ...], way: str) -> None:
    tensor = values(shape, dtype)
    assert same(crossed(tensor, way), tensor)


@pytest.mark.filterwarnings("ignore:Casting complex values")
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=8),
    st.sampled_from(WAYS),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_many_permuted_tensors_survive_together(
    specs: list[tuple[torch.dtype, list[int]]], way: str, random: Any
) -> None:
    tensors = []
    for i, (dtype, shape) in enumerate(specs):
        order = list(range(len(shape)))
        random.shuffle(order)
        tensors.append(values(tuple(shape), dtype, seed=i).permute(order))
    for before, after in zip(tensors, crossed(tensors, way), strict=True):
        assert same(before, after)
        assert after.stride() == before.clone().stride()


def test_special_float_values_keep_their_bits() -> None:
    tensor = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf"), 1e-45])
    assert same(crossed(tensor), tensor)


def test_dense_layouts_keep_their_strides_and_others_arrive_dense() -> None:
    channels_last = values((2, 3, 4, 5), torch.float32).to(memory_format=torch.channels_last)
    assert crossed(channels_last).is_contiguous(memory_format=torch.channels_last)
    base = values((6, 8), torch.float32)
    for sparse in (base[:, ::2], base[0].expand(3, 8), base[1:, 2], base.t()[::3]):
        after = crossed(sparse)
        assert same(after, sparse)
        assert after.untyped_storage().nbytes() == after.numel() * 4


def test_a_part_of_a_large_storage_takes_only_its_own_bytes() -> None:
    large = torch.zeros(1 << 20)
    packer = Packer()
    packer.add(large[5:8])
    assert packer.size < 1000


def test_shared_tensors_are_written_once_for_all_objects() -> None:
    weights = {"w": values((100, 100), torch.float32), "b": values((100,), torch.float32)}
    alone, many = Packer(), Packer()
    alone.add(weights)
    tickets = [many.add({"mine": k, "theirs": [weights, {"again": weights["w"].detach()}]}) for k in range(50)]
    assert many.size < alone.size + 50 * 1000
    with Arena.of(many) as arena:
        flat = arena.map()
    for k, ticket in enumerate(tickets):
        got = unpack(flat, ticket, own=True)
        assert got["mine"] == k
        assert same(got["theirs"][0]["w"], weights["w"])
        assert same(got["theirs"][1]["again"], weights["w"])


def test_temporary_tensors_are_not_confused_by_reused_addresses() -> None:
    class Fresh:
        """Makes a new tensor whenever it is pickled."""

        def __init__(self, value: float) -> None:
            self.value = value

        def __reduce__(self) -> tuple[Any, ...]:
            return torch.add, (torch.full((1000,), self.value), 0)

    packer = Packer()
    tickets = [packer.add(Fresh(float(k))) for k in range(20)]
    with Arena.of(packer) as arena:
        flat = arena.map()
    assert [unpack(flat, ticket, own=True).mean().item() for ticket in tickets] == list(range(20))


@pytest.mark.parametrize("way", ["load", "copy"])
def test_one_object_stays_one_object_and_copies_share_nothing(way: str) -> None:
    tensor = values((4, 4), torch.float32)
    got = crossed({"a": tensor, "same": tensor, "row": tensor[0], "transposed": tensor.t()}, way)
    assert got["a"] is got["same"]
    storages = {t.untyped_storage().data_ptr() for t in got.values()}
    assert len(storages) == 3
    assert all(t.untyped_storage().nbytes() == t.numel() * 4 for t in got.values())
    got["a"].zero_()
    assert same(got["row"], tensor[0])


def test_gradient_flags_and_parameters_survive() -> None:
    leaf = torch.ones(3, requires_grad=True)
    got = crossed({"leaf": leaf, "loss": (leaf * 2).sum(), "detached": leaf.detach(), "p": nn.Parameter(torch.ones(2))})
    assert got["leaf"].requires_grad
    assert got["loss"].requires_grad
    assert got["loss"].item() == 6
    assert not got["detached"].requires_grad
    assert isinstance(got["p"], nn.Parameter)


def test_unusual_tensors_are_left_to_torch() -> None:
    sparse = torch.eye(3).to_sparse()
    conjugated = torch.tensor([1 + 2j]).conj()
    meta = torch.empty(3, device="meta")
    got = crossed([sparse, conjugated, meta])
    assert torch.equal(got[0].to_dense(), torch.eye(3))
    assert got[1].tolist() == [1 - 2j]
    assert got[2].device.type == "meta"


def test_a_network_survives() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for name, value in crossed(net).state_dict().items():
        assert same(value, net.state_dict()[name])


def test_an_update_survives_with_its_numbers_and_nested_states() -> None:
    update = Update(
        weights={"w": values((3,), torch.float32), "n": torch.tensor(7)},
        report={"loss": 0.25, "lid": values((2,), torch.float64)},
        memory={"model": {"w": values((2, 2), torch.bfloat16)}, "clean": torch.tensor([True, False])},
        trace={"labels": torch.tensor([1, 2, 3])},
        labels=torch.tensor([3, 1], dtype=torch.int64),
        client=4,
        size=2,
    )
    got = crossed(update)
    assert (got.client, got.size, got.report["loss"]) == (4, 2, 0.25)
    assert update.weights is not None
    assert same(got.weights["w"], update.weights["w"])
    assert same(got.weights["n"], update.weights["n"])
    assert same(got.report["lid"], update.report["lid"])
    assert same(got.memory["model"]["w"], update.memory["model"]["w"])
    assert same(got.memory["clean"], update.memory["clean"])
    assert same(got.labels, update.labels)


def test_nothing_at_all_survives() -> None:
    assert crossed(None) is None
    packer = Packer()
    with Arena.of(packer) as arena:
        assert len(arena.map()) == 0


def test_offsets_are_aligned() -> None:
    packer = Packer()
    packer.add([torch.ones(1, dtype=torch.uint8), torch.ones(3, dtype=torch.float64), torch.ones(5)])
    starts = [start for start, _ in packer.parts()]
    assert len(starts) == 4
    assert all(start % ALIGNMENT == 0 for start in starts)


def test_the_array_equals_the_shared_memory() -> None:
    packer = Packer()
    packer.add({"a": torch.arange(10), "b": torch.ones(3, 3).t()})
    with Arena.of(packer) as arena:
        assert arena.map().tolist() == packer.array().tolist()


def test_a_reader_writes_only_its_own_copy() -> None:
    packer = Packer()
    ticket = packer.add(torch.zeros(5))
    with Arena.of(packer) as arena:
        mine, yours = (unpack(arena.map(), ticket, own=False) for _ in range(2))
        mine.fill_(1)
        assert yours.tolist() == [0] * 5
        assert unpack(arena.map(), ticket, own=False).tolist() == [0] * 5


def test_mapped_tensors_outlive_the_arena() -> None:
    tensor = crossed(torch.arange(1000), "view")
    gc.collect()
    assert tensor.sum().item() == 499500


def test_short_writes_and_reads_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, start: write(fd, data[:1000], start))
    monkeypatch.setattr(os, "preadv", lambda fd, targets, start: read(fd, [targets[0][:700]], start))
    tensor = values((5000,), torch.float64)
    assert same(crossed(tensor), tensor)


@pytest.mark.parametrize("memfd", [True, False])
def test_an_arena_travels_through_a_pipe_and_leaves_no_file(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:
        monkeypatch.delattr(module.os, "memfd_create", raising=False)
    before = descriptors()
    ours, theirs = Pipe()
    packer = Packer()
    ticket = packer.add({"x": torch.arange(6).view(2, 3)})
    with Arena.of(packer) as sent:
        sent.send(ours)
    with Arena.receive(theirs) as received:
        got = received.load(ticket)
    assert got["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    ours.close()
    with pytest.raises(EOFError):
        Arena.receive(theirs)
    theirs.close()
    assert descriptors() == before


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/dev/fd"))


def test_descriptors_do_not_grow_with_the_number_of_tensors() -> None:
    packer = Packer()
    ticket = packer.add([torch.ones(3) * k for k in range(3000)])
    count = descriptors()
    with Arena.of(packer) as arena:
        got = unpack(arena.map(), ticket, own=False)
        assert descriptors() <= count + 2
    assert sum(t[0].item() for t in got) == sum(range(3000))
