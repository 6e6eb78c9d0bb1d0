"""Composing the runs of a grid: Hydra does it once for all that choose the same files, the rest is plain values.

Hydra takes a tenth of a second for one run, whatever differs. Words such as `seed=3` change the composed config and
nothing before, so they are set as Hydra would set them, on a copy. Whatever is more than a plain value, or goes wrong,
is left to Hydra, with its messages.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from fnll.errors import UserError
from fnll.harness.choices import GROUPS
from fnll.harness.config import Request, check_choices, compose, composed, in_new_words, request_of
from fnll.harness.mistakes import MISTAKES

PLAIN = re.compile(r"(?P<key>[A-Za-z_]\w*(\.\w+)*)=.*", re.DOTALL)  # no +, ~ or @


class Composer:
    """Composes runs that have much in common; for as long as nobody edits a YAML."""

    def __init__(self, config_dirs: Sequence[Path] = ()) -> None:
        self.config_dirs = tuple(config_dirs)
        self._bases: dict[tuple[str, ...], bytes | None] = {}  # pickled: read back four times as fast as copied
        self._parser = OverridesParser.create()

    def __call__(self, words: Sequence[str]) -> Request:
        """What `compose` gives for these words."""
        words = in_new_words(words)
        check_choices(words, self.config_dirs)
        choosing = tuple(word for word in words if not _is_value(word))
        base = self._base(choosing)
        if base is None:
            return compose(words, self.config_dirs)
        cfg: DictConfig = pickle.loads(base)
        try:
            for override in self._parser.parse_overrides([word for word in words if _is_value(word)]):
                value = override.value()
                if override.is_sweep_override() or isinstance(value, dict):
                    return compose(words, self.config_dirs)
                OmegaConf.update(cfg, override.key_or_group, value, merge=True)
            return request_of(cfg, tuple(words), self.config_dirs)
        except (UserError, *MISTAKES):  # Hydra says it in its order, and `compose` in plain words
            return compose(words, self.config_dirs)

    def _base(self, choosing: tuple[str, ...]) -> bytes | None:
        """The config before plain values are set, without what Hydra notes about itself; None: ask Hydra each time."""
        if choosing not in self._bases:
            old = any(word.startswith("preset=") for word in choosing)
            self._bases[choosing] = None if old else pickle.dumps(_bare(composed(choosing, self.config_dirs)))
        return self._bases[choosing]


def _is_value(word: str) -> bool:
    """Whether a word sets a plain value: neither the choice of a file nor something about Hydra."""
    found = PLAIN.fullmatch(word)
    return found is not None and found["key"] not in GROUPS and found["key"].split(".")[0] != "hydra"


def _bare(cfg: DictConfig) -> DictConfig:
    choices = OmegaConf.to_container(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        cfg.hydra = {"runtime": {"choices": choices}}
    OmegaConf.set_struct(cfg, True)
    return cfg
