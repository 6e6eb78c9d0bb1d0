"""Settings of one method in a sweep of several: `fedcorr.passes=1` counts where method=fedcorr runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fnll.errors import UserError
from fnll.harness.choices import inherited, options

Words = dict[str, list[str]]  # setting → the words that its values make


def taken_from(own: Words, config_dirs: Sequence[Path]) -> dict[str, Words]:
    """Take the words that are about one method out of `own`: by its name, as words about `method`."""
    known = options("method", config_dirs)
    found: dict[str, Words] = {}
    for key in list(own):
        name = re.match(r"(?:method@)?(\w+)\.", key)
        if name and name[1] in known:
            words = [_about_method(word, name[1]) for word in own.pop(key)]
            found.setdefault(name[1], {})[_about_method(key, name[1])] = words
    return found


def _about_method(text: str, name: str) -> str:
    return re.sub(rf"^([+~]*(?:method@)?){name}\.", r"\1method.", text)


def extended(assignment: Mapping[str, str], words: Words) -> Iterator[dict[str, str]]:
    """One run's words with those of its method: one for each combination of their values."""
    for values in itertools.product(*words.values()):
        yield {**assignment, **dict(zip(words, values, strict=True))}


def require_used(words: Mapping[str, Words], methods: Iterable[str]) -> None:
    """Refuse a word about a method that no run of the sweep has."""
    methods = list(dict.fromkeys(methods))
    for name in words:
        if name not in methods:
            word = next(iter(words[name].values()))[0].replace("method.", f"{name}.", 1)
            raise UserError(
                f"{word} applies where method={name} runs, and this sweep runs {', '.join(methods)}; "
                f"add it to method=..., or leave the word out"
            )


def require_shared(own: Words, methods: Iterable[str], config_dirs: Sequence[Path]) -> None:
    """Refuse a setting of the method that some methods of the sweep do not have, once, and say how to type it."""
    known = options("method", config_dirs)
    methods = [name for name in dict.fromkeys(methods) if name in known]
    for key in own:
        setting = re.fullmatch(r"method\.(\w+)(\..*)?", key)
        if not setting or own[key][0].startswith(("+", "~")):
            continue
        having = [name for name in methods if setting[1] in _settings(known[name])]
        lacking = [name for name in methods if name not in having]
        if having and lacking:
            typed = " ".join(f"{name}.{word.partition('.')[2]}" for name in having for word in own[key][:1])
            raise UserError(
                f"{own[key][0]}: {_listed(lacking)} no setting {setting[1]!r}; type {typed}, which applies where "
                f"{'that method runs' if len(having) == 1 else 'those methods run'}"
            )


def _settings(path: Path) -> set[str]:
    found = inherited(path)
    node = found["method"] if isinstance(found.get("method"), dict) else found
    return {str(name) for name in node}


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"
