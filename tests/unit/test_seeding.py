"""Addressed randomness: pinned, so that a change that would change every result hurts."""

import random

import numpy as np
import pytest
import torch

from fnll import seeding
from fnll.seeding import Streams, derive, lent, numpy_rng, scoped, torch_rng


def test_derive_is_pinned():
    assert derive(0) == PINNED[0]
    assert derive(0, "client", 3, 17, "train", 0) == PINNED[1]
    assert derive("0") == PINNED[2]


def test_paths_do_not_run_into_each_other():
    paths = [("ab", "c"), ("a", "bc"), (1, 23), (12, 3), ("1", 23), (1, "23"), (), ("",), (-1,), (1,)]
    assert len({derive(*path) for path in paths}) == len(paths)


@pytest.mark.parametrize("part", [1.0, None, True, (1,)])
def test_only_ints_and_strings_address(part):
    with pytest.raises(TypeError, match="ints and strings"):
        derive(0, part)


def test_numpy_integers_address_like_ints():
    assert derive(np.int64(5), "x") == derive(5, "x")


def test_generators_repeat():
    assert numpy_rng(1, "a").integers(1 << 30) == numpy_rng(1, "a").integers(1 << 30)
    assert torch.equal(torch.randn(3, generator=torch_rng(1)), torch.randn(3, generator=torch_rng(1)))


def test_scoped_seeds_and_puts_back():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    draws = []
    for _ in range(2):
        with scoped(7):
            draws.append((torch.rand(1).item(), np.random.rand(), random.random()))
    assert draws[0] == draws[1]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_scoped_puts_back_after_an_error():
    before = random.getstate()
    with pytest.raises(RuntimeError), scoped(7):
        raise RuntimeError
    assert random.getstate() == before


def globals_drawn():
    return torch.rand(1).item(), np.random.rand(), random.random()


def test_computations_that_take_turns_draw_as_if_alone_and_leave_no_trace():
    alone = []
    for seed in (3, 4):
        with scoped(seed):
            alone.append([globals_drawn() for _ in range(3)])
    before = torch.get_rng_state(), random.getstate()
    first, second = Streams(3), Streams(4)
    draws = {first: [], second: []}
    with lent():
        for one in (first, first, second, first, second, second):
            one.take()
            draws[one].append(globals_drawn())
    assert [draws[first], draws[second]] == alone
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_computation_goes_on_where_it_stood_whatever_was_lent_in_between():
    streams = Streams(3)
    with scoped(3):
        alone = [globals_drawn() for _ in range(2)]
    with lent():
        streams.take()
        one = globals_drawn()
        with lent():
            Streams(8).take()
            globals_drawn()
        streams.take()
        assert [one, globals_drawn()] == alone


def test_who_has_ended_is_not_written_down(monkeypatch):
    kept = []
    monkeypatch.setattr(seeding, "_state", lambda gpus, real=seeding._state: kept.append(1) or real(gpus))
    with lent():
        first = Streams(3)
        first.take()
        first.end()
        Streams(4).take()
    assert len(kept) == 1, "what was there before is; the ended one's place is not"


DRAWS = {
    "torch": lambda: torch.rand(1),
    "torch's normal": lambda: torch.randn(1),
    "numpy": lambda: np.random.rand(),
    "numpy's normal": lambda: np.random.randn(),
    "numpy, all words of its state": lambda: np.random.bytes(4 * 624),
    "python": lambda: random.random(),
    "python's normal": lambda: random.gauss(0, 1),
    "python, all words of its state": lambda: random.getrandbits(32 * 624),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_one_draw_of_any_kind_is_kept_when_generators_change_hands(draw):
    with scoped(3):
        draw()
        alone = globals_drawn(), np.random.randn(), random.gauss(0, 1)
    first, second = Streams(3), Streams(4)
    with lent():
        for one in (first, second, first):
            one.take()  # nothing drawn: starts again
        draw()
        second.take()
        globals_drawn()
        first.take()
        assert (globals_drawn(), np.random.randn(), random.gauss(0, 1)) == alone


def test_who_has_drawn_nothing_is_not_written_down(monkeypatch):
    kept = []
    monkeypatch.setattr(seeding, "_state", lambda gpus, real=seeding._state: kept.append(1) or real(gpus))
    with lent():
        first = Streams(3)
        first.take()
        Streams(4).take()
        first.take()
        globals_drawn()
        Streams(4).take()
    assert len(kept) == 2, "what was there before, and the first one's place after its draws"


PINNED = (6148773199958884930, 6379135863602414840, 384157422120658919)
