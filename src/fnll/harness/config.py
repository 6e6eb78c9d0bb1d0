"""From words on the command line to a resolved config: `compose`, and the `Request` it gives."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fnll.errors import UserError, nearest, require
from fnll.harness.choices import CONFIG_NAME, GROUPS, config_dir, folders, options, plugin_dirs, plugin_packages
from fnll.harness.hydra_versions import VERSION_BASE, register_plugins
from fnll.harness.mistakes import MISTAKES, check_keys, explain
from fnll.harness.paper_worlds import NONE, of_preset
from fnll.harness.secrets import from_environment
from fnll.harness.trust import require_trusted, require_trusted_hydra, used

log = logging.getLogger(__name__)

LONGEST = 255  # bytes of a name in a file system
CHOICE = re.compile(r"[A-Za-z_~*]\S*|[\[('\"$].*[A-Za-z_].*")  # a name, several, or what is resolved to one
NO_GRID = ("experiment", "none")  # a choice for Hydra's sake: 1.4 puts no null into the name of another choice
NO_NAMES = {"true", "false", "null", "nan", "inf"}  # words that Hydra takes for values, and then cannot look up
RENAMED = {  # words of earlier versions that are still understood, and what to type now
    "executor=cohort": "executor=vectorised",
    "experiment=fedcorr_ablation": "experiment=paper/fedcorr_table6 size=mini",
    "experiment=fedrn_alpha": "experiment=paper/fedrn_table8 size=mini",
    "experiment=fedrn_neighbours": "experiment=paper/fedrn_table6 size=mini",
    "experiment=fednoro_detection": "experiment=paper/fednoro_table3 size=mini",
    "experiment=fednoro_ablation": "experiment=paper/fednoro_table4 size=mini",
}


@dataclass(frozen=True)
class Request:
    """One composed run: its resolved config, and which file each group's values came from."""

    cfg: DictConfig
    choices: dict[str, str]
    overrides: tuple[str, ...] = ()
    config_dirs: tuple[Path, ...] = ()
    names: dict[str, str] = field(default_factory=dict)  # what tables call a method and those inside it, by their place
    hidden: Mapping[str, str] = field(default_factory=dict)  # settings from the environment → what the config says

    @property
    def name(self) -> str:
        """The method as the user named it."""
        return self.choices["method"]

    @property
    def command(self) -> str:
        """What to type to run this again."""
        return command(self.overrides, self.config_dirs, used(OmegaConf.to_container(self.cfg)))


def command(overrides: Sequence[str], config_dirs: Sequence[Path] = (), trusted: Sequence[str] = ()) -> str:
    """The shell command that runs what these overrides describe."""
    trust = [f"--allow={name}" for name in trusted]
    return shlex.join(["fnll", "run", *trust, *(f"--config-dir={folder}" for folder in config_dirs), *overrides])


def compose(overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()) -> Request:
    """The config that `fnll run` would see for these overrides."""
    overrides = in_new_words(overrides)
    check_choices(overrides, config_dirs)
    overrides = papers_words(overrides, config_dirs)
    cfg = composed(overrides, config_dirs)
    try:
        return request_of(cfg, tuple(overrides), config_dirs)
    except MISTAKES as error:
        raise explain(error, config_dirs) from None


def composed(words: Sequence[str], config_dirs: Sequence[Path] = ()) -> DictConfig:
    """What Hydra makes of these words, with its own node."""
    for group in GROUPS:
        options(group, config_dirs)
    folders = ",".join(f"file://{Path(folder).resolve()}" for folder in config_dirs)
    search = [f"hydra.searchpath=[{folders}]"] if folders else []
    GlobalHydra.instance().clear()
    register_plugins()
    try:
        with initialize_config_dir(str(config_dir()), job_name="fnll", **VERSION_BASE):
            cfg = hydra_compose(CONFIG_NAME, overrides=[*words, *search], return_hydra_config=True)
            require_trusted_hydra(OmegaConf.to_container(cfg.hydra))
            return cfg
    except MISTAKES as error:
        raise explain(error, config_dirs) from None


def in_new_words(words: Sequence[str]) -> list[str]:
    """`words` with those of earlier versions in their present form; says once what is new."""
    for word in words:
        if word in RENAMED:
            log.warning("%s is called %s since 0.2", word, RENAMED[word])
    return [new for word in words for new in (RENAMED[word].split() if word in RENAMED else [word])]


def check_choices(words: Sequence[str], config_dirs: Sequence[Path] = ()) -> None:
    """Refuse a group without a choice, which Hydra answers with an error of its own internals."""
    for group in GROUPS:
        if {f"{group}=", f"{group}=null", f"~{group}"}.intersection(words):
            choices = ", ".join(sorted(options(group, config_dirs)))
            raise UserError(f"{group} needs a choice; leave it out, or type {group}=NAME with one of {choices}")
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if equals and not key:
            raise UserError(f"{word!r} is not a setting; type SETTING=VALUE, as in seed=1")
        if equals and key == "size":
            raise UserError(f"{word}: a size is asked for with `fnll sweep`; for one run type paper=fedcorr/mini")
        group = key.lstrip("~").partition("@")[0]
        nameless = NO_NAMES.intersection(name.strip().lower() for name in value.strip("[]").split(","))
        if group in GROUPS and not value.startswith("{") and (nameless or not CHOICE.fullmatch(value)):
            raise UserError(f"there is no {group} called {value!r}; {nearest(value, options(group, config_dirs))}")
        if key.startswith(("hydra.run", "hydra.sweep", "hydra.output_subdir")):
            raise UserError(f"{key} would put a folder of Hydra's somewhere; leave it out: runs go to runs_dir")


def papers_words(words: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[str]:
    """`words` with `paper=...` in the place of the presets that 0.2 had; says once what is new."""
    done = list(words)
    for place, word in enumerate(words):  # in its place: options may follow
        if not word.startswith("preset="):
            continue
        rest = [other for other in words if other != word and "=" in other and not other.startswith("-")]
        choices = compose(rest, config_dirs).choices
        world = of_preset(word.partition("=")[2], choices["method"], choices["dataset"], folders(config_dirs))
        done[place] = f"paper={world}"
        if world == NONE and word == "preset=paper":
            log.warning(
                "no paper has settings for method=%(method)s on dataset=%(dataset)s; the shared ones are used", choices
            )
        else:
            log.warning("%s is called %s since 0.2", word, done[place])
    return done


def request_of(cfg: DictConfig, overrides: tuple[str, ...] | None = None, config_dirs: Sequence[Path] = ()) -> Request:
    """Split a config with Hydra's own node into the run's config and the choices made."""
    hydra = cfg.hydra if "hydra" in cfg else HydraConfig.get()
    chosen = [(str(key), value) for key, value in hydra.runtime.choices.items() if value is not None]
    own = ("hydra/", "paper@", "experiment@")  # what nobody chose: it follows from other choices
    choices = {key: str(value) for key, value in chosen if not key.startswith(own) and (key, value) != NO_GRID}
    if overrides is None:
        overrides = tuple(hydra.overrides.task)
    resolved = {str(key): _resolved(cfg[key]) for key in cfg if key != "hydra"}
    require_trusted(resolved, (config_dir(), *plugin_dirs().values()), plugin_packages())
    check_keys(resolved)
    if "/" in choices["method"]:  # runs are named after the method, and a run's folder must not leave runs_dir
        raise UserError(f"method={choices['method']}: methods lie in the folder `method` itself; type the name alone")
    names = take_names(resolved, ["method", *(slot.removeprefix("method@") for slot in choices if "@" in slot)])
    hidden = from_environment(cfg)
    return Request(OmegaConf.create(resolved), choices, overrides, tuple(config_dirs), names, hidden)


def take_names(cfg: dict[str, Any], places: Sequence[str]) -> dict[str, str]:
    """Take the `name`s out of methods: they are for tables, no part of what is computed or of a run's id."""
    found = {}
    for place in places:
        node: Any = cfg
        for key in place.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict) and (name := node.pop("name", None)) is not None:
            found[place] = str(name)
    return found


def _resolved(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if OmegaConf.is_config(node) else node


def store_of(cfg: DictConfig) -> Path:
    """The folder that runs go to."""
    require(
        isinstance(cfg.runs_dir, str) and cfg.runs_dir != "",
        f"runs_dir must name a folder, got {cfg.runs_dir!r}; type runs_dir=runs, or runs_dir=./3 for one called 3",
    )
    require(
        all(len(part.encode()) <= LONGEST for part in Path(cfg.runs_dir).parts),
        f"runs_dir has a name of more than {LONGEST} letters, which no file system takes; type a shorter one",
    )
    return Path(cfg.runs_dir)
