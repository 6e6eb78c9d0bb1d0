"""`fnll new method NAME`: a small working method with the places to fill in."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fnll.config import options
from fnll.errors import UserError, require


def main(argv: Sequence[str]) -> int:
    """Write the files and say what to type next."""
    parser = argparse.ArgumentParser(
        prog="fnll new",
        description="Write a small working method with the places to fill in: Python, YAML, test and doc page.",
        epilog="In a checkout of fnll the files go where methods live; --package makes a package of your own.",
    )
    parser.add_argument("kind", choices=["method"])
    parser.add_argument("name", help="as on the command line: lower case, digits and underscores")
    parser.add_argument("--package", metavar="DIR", type=Path, help="make a new package in this (new) folder")
    args = parser.parse_args(argv)
    name = args.name
    require(bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name),
            f"a method's name is lower case letters, digits and underscores, got {name!r}")  # fmt: skip
    if name in options("method"):
        raise UserError(f"there is a method called {name!r} already: {options('method')[name]}")
    written = package(args.package, name) if args.package else in_repository(Path.cwd(), name)
    for path in written:
        print(f"wrote {path}")
    first = [f"cd {args.package} && pip install -e ."] if args.package else []
    print("\nit works as it is; try it, then complete the places marked FILL IN:")
    for line in [*first, f"fnll check {name}", f"fnll run method={name} rounds=5"]:
        print(f"  {line}")
    return 0


def in_repository(root: Path, name: str) -> list[Path]:
    """Files of a method inside a checkout of fnll."""
    require(
        (root / "src/fnll/methods").is_dir() and (root / "configs/method").is_dir(),
        "this is not a checkout of fnll; go to its top folder, or type --package DIR for a package of your own",
    )
    targets: dict[Path, str | None] = {
        root / f"src/fnll/methods/{name}.py": "method.py",
        root / f"configs/method/{name}.yaml": "method.yaml",
        root / f"tests/methods/test_{name}.py": "test_method.py",
        root / f"docs/methods/{name}.md": "method.md",
    }
    return _write(targets, name=name, module=f"fnll.methods.{name}", package="fnll", subject=name)


def package(folder: Path, name: str) -> list[Path]:
    """A package of its own: pyproject, method, YAML, test, doc page and README."""
    inner = re.sub(r"\W", "_", folder.resolve().name.lower())
    require(inner.isidentifier(), f"a package cannot be called {folder.name!r}; use letters, digits and underscores")
    require(
        not folder.exists() or not any(folder.iterdir()), f"{folder} exists and is not empty; choose another folder"
    )
    source = folder / "src" / inner
    targets = {
        folder / "pyproject.toml": "pyproject.toml",
        folder / "README.md": "README.md",
        source / "__init__.py": None,
        source / f"{name}.py": "method.py",
        source / f"configs/method/{name}.yaml": "method.yaml",
        folder / f"tests/test_{name}.py": "test_method.py",
        folder / f"docs/{name}.md": "method.md",
    }
    return _write(targets, name=name, module=f"{inner}.{name}", package=inner, subject=name)


def _write(targets: dict[Path, str | None], **values: str) -> list[Path]:
    if taken := [path for path in targets if path.exists()]:
        raise UserError(f"{taken[0]} exists already; nothing was written")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    values["title"] = "".join(part.capitalize() for part in values["name"].split("_"))
    for path, template in targets.items():
        text = f'"""{values["package"]}: methods for fnll."""\n'
        if template is not None:
            text = environment.from_string((files("fnll") / "scaffold" / f"{template}.j2").read_text()).render(values)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(targets)
