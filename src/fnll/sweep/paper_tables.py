"""Grids that are a paper's table: rows and columns, of which words select some; and the same at a size for a laptop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from fnll.errors import UserError, require
from fnll.harness.choices import folders
from fnll.harness.label import OFFICIAL
from fnll.harness.paper_worlds import NONE, worlds

METHOD, PAPER, SIZE = "method", "paper", "size"
MINI = "mini"

Assignment = dict[str, str]
Words = dict[str, list[str]]


def is_table(cells: Any) -> bool:
    """Whether a grid's cells are rows and columns, as a paper prints them."""
    return isinstance(cells, list) and any(isinstance(cell, dict) and "rows" in cell for cell in cells)


def is_small(words: Sequence[str]) -> bool:
    """Whether a run is of `size=mini`, which needs no data of a paper's."""
    return any(word.startswith(f"{PAPER}=") and _value(word).partition("/")[2].startswith(MINI) for word in words)


def selected(cells: Sequence[Assignment], own: Words) -> tuple[list[Assignment], Words]:
    """The cells of a table that words ask for, and the words that are not about its cells.

    A table is not changed by a word about it: `method=fedavg` is its row of FedAvg, and what it does not have is
    refused. `fedcorr_official` stands in FedCorr's row.
    """
    chosen, rest = list(cells), dict(own)
    for key in [key for key in own if any(key in cell for cell in cells)]:
        words = rest.pop(key)
        kept = [new for cell in chosen if key in cell for word in words if (new := _taken(cell, key, word)) is not None]
        if not kept:
            known = dict.fromkeys(_value(cell[key]) for cell in cells if key in cell)
            asked = ",".join(map(_value, words))
            raise UserError(
                f"the table has no cell with {key}={asked}; it has {key}={','.join(known)}. For other settings than "
                "the table's leave out experiment=... and type paper=NAME/DATA with them"
            )
        chosen = kept
    return chosen, rest


def _taken(cell: Assignment, key: str, word: str) -> Assignment | None:
    if _same(cell[key], word):
        return cell
    if key == METHOD and _value(word).endswith(OFFICIAL) and _value(cell[key]) == _value(word).removesuffix(OFFICIAL):
        return {**cell, key: word}
    return None


def _same(one: str, other: str) -> bool:
    parser = OverridesParser.create()
    return bool(parser.parse_override(one).value() == parser.parse_override(other).value())


def asked_size(own: Words) -> bool:
    """Take `size=...` out of the words; whether the small one is asked for."""
    words = own.pop(SIZE, [f"{SIZE}=full"])
    require(len(words) == 1 and _value(words[0]) in ("full", MINI), f"{','.join(words)}: size is full or mini")
    return _value(words[0]) == MINI


def smaller(cells: Sequence[Assignment], world: str, rules: Any) -> tuple[str, list[Assignment]]:
    """The world and the cells of a table at a size for a laptop; `rules` say what its own numbers become there."""
    if isinstance(rules, str):
        raise UserError(f"size=mini: this table has no small size: {rules}")
    return mini_of(world), [_smaller(cell, rules or {}) for cell in cells]


def mini_of(world: str) -> str:
    """The world of the same paper on digits."""
    require(
        world != NONE, "size=mini is the small size of a paper's table or world; name one with experiment=paper/..."
    )
    paper, _, data = world.partition("/")
    small = f"{paper}/{MINI}" + ("_centralised" if data.endswith("_centralised") else "")
    require(small in worlds(folders()), f"size=mini: there is no small size of paper={world}")
    return small


def _smaller(cell: Assignment, rules: Mapping[str, Mapping[Any, Any]]) -> Assignment:
    done = {}
    for key, word in cell.items():
        if key == PAPER:
            word = f"{PAPER}={mini_of(_value(word))}"
        elif key in rules:
            new = {str(full): mini for full, mini in rules[key].items()}
            word = f"{key}={new.get(_value(word), _value(word))}"
        done[key] = word
    return done


def _value(word: str) -> str:
    return word.partition("=")[2]
