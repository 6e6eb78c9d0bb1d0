"""What the installed methods say about themselves, read from their files: importing torch to list them takes seconds.

The head of a method's YAML tells people what it is, in comments, so that it is no part of a run's settings:

    # does: pulls each client's weights towards the global ones; for clients that differ, not for noise
    # cite: li2020fedprox

`cite` names entries of a BibTeX file: fnll's own, or `references.bib` beside the YAML's folder in a plugin.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fnll.errors import UserError
from fnll.harness.choices import config_dir, inherited, options, plugin_dirs, plugin_packages
from fnll.harness.trust import require_trusted

FIELDS = ("does", "cite")
FIELD = re.compile(rf"#\s*({'|'.join(FIELDS)}):\s*(\S.*)")
ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)
BIBLIOGRAPHY = "references.bib"
ORACLES = {"true_labels": "the true labels", "drop_noisy": "which labels are wrong"}
UNKNOWN = object()  # what the source alone does not tell


@dataclass(frozen=True)
class Described:
    """One installed method."""

    choice: str  # what to type: method=choice
    name: str  # what to print
    does: str
    paper: str
    cite: tuple[str, ...]  # keys of BibTeX entries
    target: str
    privileges: tuple[str, ...]

    @property
    def official(self) -> bool:
        """Whether it is the released code's form of another method."""
        return self.choice.endswith("_official")


def described(choice: str, config_dirs: Sequence[Path] = ()) -> Described:
    """What a method says about itself."""
    path = options("method", config_dirs)[choice]
    said = head(path)
    settings = inherited(path)
    node = settings.get("method", settings)
    target = str(node.get("_target_", ""))
    if "." not in target:
        raise UserError(f"{path} names no `_target_`; its YAML should say which class it configures")
    require_trusted({"_target_": target}, (config_dir(), *plugin_dirs().values()), plugin_packages(), unseen=True)
    module, _, kind = target.rpartition(".")
    given = list(_of_class(module, kind, "privileges") or ())
    oracle = (settings.get("scenario") or {}).get("oracle", "none")
    if oracle != "none":
        given.append(f"{ORACLES[oracle]} (an upper bound, not a method)")
    paper = str(_of_class(module, kind, "__doc__") or "").strip().split("\n")[0]
    cited = tuple(key.strip() for key in said.get("cite", "").split(",") if key.strip())
    name = str(node.get("name") or (kind if oracle == "none" else choice))
    return Described(choice, name, said.get("does", ""), paper, cited, target, tuple(given))


def head(path: Path) -> dict[str, str]:
    """The fields in the comments above a YAML's settings."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if match := FIELD.fullmatch(line.strip()):
            found[match[1]] = match[2]
    return found


def bibliography(config_dirs: Sequence[Path] = ()) -> dict[str, str]:
    """Every BibTeX entry that is known here, by its key."""
    places = [Path(str(files("fnll"))) / BIBLIOGRAPHY]
    places += sorted({path.parent.parent / BIBLIOGRAPHY for path in options("method", config_dirs).values()})
    texts = [place.read_text() for place in places if place.is_file()]
    return {match["key"]: match[0] for text in texts for match in ENTRY.finditer(text)}


def _of_class(module: str, kind: str, name: str) -> Any:
    """An attribute of a class as its source states it; where that does not tell, the module is imported."""
    found = _stated(module, kind, name)
    if found is not UNKNOWN:
        return found
    try:
        return getattr(getattr(import_module(module), kind), name, None)
    except Exception as error:  # whatever importing somebody's module may raise
        advice = "fix its `_target_`, or put the folder that holds it on PYTHONPATH"
        raise UserError(f"cannot read {module}.{kind}: {error}; {advice}") from error


def _stated(module: str, kind: str, name: str) -> Any:
    tree = _parsed(module)
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind] if tree else []
    if tree is None or not found:
        return UNKNOWN
    if name == "__doc__":
        return ast.get_docstring(found[-1])
    for statement in found[-1].body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in _assigned(statement):
            try:
                return ast.literal_eval(statement.value) if statement.value else UNKNOWN
            except (ValueError, TypeError):
                return UNKNOWN
    return next((value for base in found[-1].bases if (value := _inherited_from(tree, module, base, name))), None)


def _assigned(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _inherited_from(tree: ast.Module, module: str, base: ast.expr, name: str) -> Any:
    """The attribute in a base class, wherever that lies; nothing is known of a base that is computed."""
    if not isinstance(base, ast.Name):
        return UNKNOWN
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == base.id:
            return _stated(module, base.id, name)
        if isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            for alias in statement.names:
                if (alias.asname or alias.name) == base.id:
                    return _stated(_home(statement.module, alias.name), alias.name, name)
    return UNKNOWN


def _home(module: str, name: str) -> str:
    """Where `from fnll import FedAvg` takes it from."""
    from fnll import HOMES

    return HOMES.get(name, module) if module == "fnll" else module


@cache
def _parsed(module: str) -> ast.Module | None:
    try:
        spec = find_spec(module)
        return ast.parse(Path(str(spec.origin)).read_text()) if spec and spec.origin else None
    except (ImportError, ValueError, OSError, SyntaxError):
        return None
