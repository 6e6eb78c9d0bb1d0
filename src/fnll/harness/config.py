"""From words on the command line to a resolved config, with Hydra's errors in plain words."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fnll.errors import UserError, nearest, require
from fnll.harness.groups import check_groups
from fnll.harness.hydra_versions import VERSION_BASE, register_plugins
from fnll.harness.secrets import from_environment
from fnll.harness.trust import require_trusted, require_trusted_hydra, used
from fnll.harness.worlds import NONE, of_preset, worlds

log = logging.getLogger(__name__)

CONFIG_NAME = "run"
MISTAKES = (HydraException, OmegaConfBaseException, yaml.YAMLError)  # what a wrong word or file makes Hydra raise
INTERNALS = ("full_key:", "object_type=", "reference_type=", "See https://")  # of OmegaConf's messages
LONGEST = 255  # bytes of a name in a file system
CHOICE = re.compile(r"[A-Za-z_~*]\S*|[\[('\"$].*[A-Za-z_].*")  # a name, several, or what is resolved to one
ENTRY_POINTS = "fnll.configs"
RENAMED = {"executor=cohort": "executor=vectorised"}  # words of earlier versions that are still understood
GROUPS = (
    "scenario",
    "dataset",
    "partition",
    "noise",
    "model",
    "local",
    "method",
    "executor",
    "logger",
    "paper",
    "experiment",
)


def config_dir() -> Path:
    """The configs: inside the installed package, or at the top of the source tree."""
    inside = Path(str(files("fnll"))) / "configs"
    return inside if inside.is_dir() else Path(__file__).resolve().parents[3] / "configs"


@cache  # reading the metadata of every installed package takes as long as composing a config
def plugin_dirs() -> dict[str, Path]:
    """Config folders of other installed packages, by the name under which they registered."""
    found: dict[str, Path] = {}
    for point in entry_points(group=ENTRY_POINTS):
        folder = _plugin_dir(point)
        if found.setdefault(point.name, folder) != folder:
            raise UserError(
                f"two installed packages register {ENTRY_POINTS} under the name {point.name!r}: {found[point.name]} "
                f"and {folder}; rename one of the entry points or uninstall one of the packages"
            )
    return found


@cache
def plugin_packages() -> tuple[str, ...]:
    """The top names of installed packages that registered configs: whoever installs a package trusts its code."""
    return tuple(point.value.partition(":")[0].partition(".")[0] for point in entry_points(group=ENTRY_POINTS))


def _plugin_dir(point: EntryPoint) -> Path:
    package, _, inside = point.value.partition(":")
    who = f"the installed package {point.dist.name if point.dist else package!r} registers {point.value!r} with fnll"
    try:
        folder = Path(str(files(package))) / inside
    except Exception as error:  # whatever importing somebody's package may raise
        raise UserError(f"{who}, but importing it fails: {error}; fix or uninstall it") from error
    if not folder.is_dir():
        raise UserError(f"{who}, but there is no folder {folder}; fix or uninstall it")
    return folder


def options(group: str, extra: Sequence[Path] = ()) -> dict[str, Path]:
    """The choices of a config group, ours and the plugins'; two packages with the same name are refused."""
    found: dict[str, Path] = {}
    for folder in folders(extra):
        for path in sorted((folder / group).glob("*.yaml")):
            if path.stem in found and found[path.stem] != path:
                raise UserError(
                    f"{group}={path.stem} is defined twice: in {found[path.stem]} and in {path}; "
                    "rename one of them or uninstall one of the packages"
                )
            found[path.stem] = path
    return found


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
    known = [RENAMED.get(word, word) for word in words]
    for old, new in zip(words, known, strict=True):
        if old != new:
            log.warning("%s is called %s since 0.2", old, new)
    return known


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
        if key in GROUPS and not value.startswith("{") and not CHOICE.fullmatch(value):  # local={lr:0.5} is Hydra's
            raise UserError(f"there is no {key} called {value!r}; {nearest(value, options(key, config_dirs))}")
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
            log.warning("%s is called %s since 0.3", word, done[place])
    return done


def folders(config_dirs: Sequence[Path] = ()) -> list[Path]:
    """Every folder of configs: ours, the plugins', and those that were named."""
    for folder in config_dirs:
        require(Path(folder).is_dir(), f"--config-dir {folder} is no folder; give one that holds configs")
    return [config_dir(), *plugin_dirs().values(), *config_dirs]


def request_of(cfg: DictConfig, overrides: tuple[str, ...] | None = None, config_dirs: Sequence[Path] = ()) -> Request:
    """Split a config with Hydra's own node into the run's config and the choices made."""
    hydra = cfg.hydra if "hydra" in cfg else HydraConfig.get()
    chosen = [(str(key), value) for key, value in hydra.runtime.choices.items() if value is not None]
    own = ("hydra/", "paper@", "experiment@")  # what nobody chose: it follows from other choices
    choices = {key: str(value) for key, value in chosen if not key.startswith(own)}
    if overrides is None:
        overrides = tuple(hydra.overrides.task)
    resolved = {str(key): _resolved(cfg[key]) for key in cfg if key != "hydra"}
    require_trusted(resolved, (config_dir(), *plugin_dirs().values()), plugin_packages())
    _check_keys(resolved)
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


def _check_keys(cfg: dict[str, Any]) -> None:
    """Refuse settings that nothing reads: a misspelt one in a YAML, or behind `+`, would be believed to count."""
    known = _top_level()
    check_groups(cfg)
    expected = known.keys() - {"defaults", "hydra"}
    for prefix, given, names in (
        ("", cfg, expected),
        *((f"{group}.", cfg[group], known[group].keys()) for group in ("eval", "sweep", "paper")),
    ):
        for key in given.keys() - names - (set() if prefix else set(GROUPS)):
            raise _no_setting(prefix + key)
        for key in sorted(names - given.keys()):
            raise UserError(f"{prefix}{key} has no value; type {prefix}{key}=...")


@cache  # every run of a grid asks
def _top_level() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((config_dir() / f"{CONFIG_NAME}.yaml").read_text())
    return found


def explain(error: Exception, config_dirs: Sequence[Path] = ()) -> UserError:
    """A Hydra or OmegaConf error in plain words, with the nearest names that exist."""
    text = str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f"{mark.name}, line {mark.line + 1}" if mark else "a config file"
        return UserError(f"{place} is not YAML: {error.problem}")
    if isinstance(error, OverrideParseException):
        reason = re.sub(r"(^Error parsing override '.*'\n)|(\n*See https://.*)", "", text).strip()
        return UserError(
            f"cannot read {error.override!r} ({reason}); type SETTING=VALUE, quoted if it holds brackets or spaces"
        )
    several = re.search(r"Ambiguous value for argument '(?P<word>.*)'\n", text)
    if several:
        return UserError(f"{several['word']} has several values; type `fnll sweep {several['word']}` to run them all")
    missing = re.search(r"Could not find '(?P<group>[\w/]+)/(?P<name>[^'/]+)'", text)
    if missing and missing["group"].partition("/")[0] == "paper":
        name = f"{missing['group']}/{missing['name']}".removeprefix("paper/")
        return UserError(f"there is no paper={name}; {nearest(name, worlds(folders(config_dirs)))}")
    if missing:
        group, name = missing["group"], missing["name"]
        known = options(group, config_dirs) if group.partition("/")[0] in GROUPS else {}
        hint = nearest(name, known) if known else "see `fnll run --help`"
        return UserError(f"there is no {group} called {name!r}; {hint}")
    unknown = re.search(r"Could not override '(?P<key>[^']+)'", text) or re.search(
        r"Key '(?P<key>[^']+)' is not in", text
    )
    if unknown:
        key = unknown["key"]
        return _elsewhere(key, error, config_dirs) or _no_setting(key)
    value = re.search(r"Missing mandatory value: (?P<key>\S+)", text)
    if value:
        full = getattr(error, "full_key", None) or value["key"]
        return UserError(f"{full} has no value; type {full}=...")
    told = [line.strip() for line in text.splitlines() if not line.strip().startswith(INTERNALS)]
    return UserError(" ".join(line for line in told if line) or type(error).__name__)


def _no_setting(key: str) -> UserError:
    hint = nearest(key, _known_keys(key))
    if not hint.startswith("did you mean"):
        hint = "`fnll run --cfg job` prints every setting"  # all of them would hide the message
    return UserError(f"there is no setting called {key!r}; {hint}")


def _elsewhere(key: str, error: Exception, config_dirs: Sequence[Path]) -> UserError | None:
    """The message about a setting that other choices of its group have, but not the one that was made."""
    group, _, setting = key.partition(".")
    choices = options(group, config_dirs) if group in GROUPS else {}
    having = [name for name, path in choices.items() if key in _leaves(inherited(path), f"{group}.")]
    if not having:
        return None
    node = getattr(error.__cause__, "parent_node", None)  # the group's own node, where the setting was looked for
    target = node.get("_target_") if isinstance(node, DictConfig) else None
    chosen = [name for name, path in choices.items() if target and inherited(path).get("_target_") == target]
    subject = f"{group}={chosen[0]}" if len(chosen) == 1 else f"the chosen {group}"
    return UserError(f"{subject} has no setting {setting!r}; these choices of {group} have it: {', '.join(having)}")


def inherited(path: Path) -> dict[str, Any]:
    """A choice's settings with those of the choices it starts from."""
    own = yaml.safe_load(path.read_text()) or {}
    bases = [path.with_name(f"{base}.yaml") for base in own.get("defaults", []) if isinstance(base, str)]
    return {key: value for base in bases if base.exists() for key, value in inherited(base).items()} | own


def _known_keys(key: str) -> list[str]:
    """Every setting of the default config and of all choices of the group that `key` is in."""
    group = key.split(".")[0]
    keys: set[str] = set(GROUPS)
    sources = [(config_dir() / f"{CONFIG_NAME}.yaml", "")]
    groups = [group] if group in GROUPS else [name for name in GROUPS if name not in ("paper", "experiment")]
    sources += [(path, f"{name}.") for name in groups for path in options(name).values()]
    for path, prefix in sources:
        keys |= _leaves(yaml.safe_load(path.read_text()) or {}, prefix)
    return sorted(keys)


def _leaves(node: Any, prefix: str) -> set[str]:
    if not isinstance(node, dict):
        return set()
    found = set()
    for name, value in node.items():
        if str(name).startswith("_") or name in ("defaults", "hydra"):
            continue
        found.add(f"{prefix}{name}")
        found |= _leaves(value, f"{prefix}{name}.")
    return found
