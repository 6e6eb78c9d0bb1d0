"""`fnll new method NAME`: a small working method with the places to fill in."""

from __future__ import annotations

import argparse
import keyword
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fnll.errors import UserError, require
from fnll.harness.choices import ENTRY_POINTS, options
from fnll.system.files import make_folder, write_file


def main(argv: Sequence[str]) -> int:
    """Write the files and say what to type next."""
    parser = argparse.ArgumentParser(
        prog="fnll new",
        description="Write a small working method with the places to fill in: Python, YAML, test and doc page.",
        epilog="In a checkout of fnll the files go where methods live; --package makes a package of your own, or adds "
        "the method to the one that is in DIR.",
    )
    parser.add_argument("kind", choices=["method"])
    parser.add_argument("name", help="as on the command line: lower case, digits and underscores")
    parser.add_argument("--package", metavar="DIR", type=Path, help="a folder for your package: a new one, or yours")
    args = parser.parse_args(argv)
    name = args.name
    require(bool(re.fullmatch(r"[a-z][a-z0-9_]*", name)) and not keyword.iskeyword(name),
            f"a method's name is lower case letters, digits and underscores, got {name!r}")  # fmt: skip
    if name in options("method"):
        raise UserError(f"there is a method called {name!r} already: {options('method')[name]}")
    written = in_package(args.package, name) if args.package else in_repository(Path(), name)
    for path in written:
        print(f"wrote {path}")
    if not args.package and _put_into_menu(Path("mkdocs.yml"), name):
        print("added the page to mkdocs.yml")
    _say_what_next(name, args.package)
    return 0


def _say_what_next(name: str, package: Path | None) -> None:
    tests = "tests" if package else f"tests/methods/test_{name}.py"
    lines = [
        *([f"cd {package} && pip install -e ."] if package else []),
        f"fnll check {name}",
        f"python -m pytest {tests}",
        f"fnll sweep experiment=demo method=fedavg,{name} --report report",
    ]
    print("\nit works as it is; try it, then complete the places marked FILL IN:")
    for line in lines:
        print(f"  {line}")


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
    return _write(targets, name=name, module=f"fnll.methods.{name}", package="fnll")


def _put_into_menu(menu: Path, name: str) -> bool:
    """List the page behind those of the other methods: a page that no menu leads to is a warning of `make docs`."""
    lines = menu.read_text().splitlines(keepends=True) if menu.exists() else []
    others = [i for i, line in enumerate(lines) if re.match(r"\s+- .*: methods/\w+\.md$", line.rstrip())]
    if not others:
        return False
    indent = re.match(r"\s+", lines[others[-1]])
    lines.insert(others[-1] + 1, f"{indent[0] if indent else ''}- {_title(name)}: methods/{name}.md\n")
    write_file(menu, "".join(lines))
    return True


def in_package(folder: Path, name: str) -> list[Path]:
    """A package of its own: pyproject, method, YAML, test, doc page and README; or a further method for it."""
    known = folder / "pyproject.toml"
    if known.exists():
        inner, configs, source = _registered(known)
        targets: dict[Path, str | None] = {}
    else:
        inner, configs = re.sub(r"\W", "_", folder.resolve().name.lower()), "configs"
        require(
            inner.isidentifier() and inner != "fnll",
            f"a package cannot be called {folder.name!r}; use letters, digits, underscores",
        )
        require(
            not folder.exists() or not any(folder.iterdir()),
            f"{folder} is neither empty nor a package for fnll (it has no pyproject.toml); choose another folder",
        )
        source = folder / "src" / inner
        targets = {known: "pyproject.toml", folder / "README.md": "README.md", source / "__init__.py": None}
    targets |= {
        source / f"{name}.py": "method.py",
        source / configs / f"method/{name}.yaml": "method.yaml",
        folder / f"tests/test_{name}.py": "test_method.py",
        folder / f"tests/test_{name}_contract.py": "test_contract.py",
        folder / f"docs/{name}.md": "method.md",
    }
    return _write(targets, name=name, module=f"{inner}.{name}", package=inner)


def _registered(pyproject: Path) -> tuple[str, str, Path]:
    """Of a package that brings configs already: its import name, its config folder and where its source is."""
    try:
        points = tomllib.loads(pyproject.read_text()).get("project", {}).get("entry-points", {}).get(ENTRY_POINTS, {})
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{pyproject} cannot be read: {error}") from None
    example = f'[project.entry-points."{ENTRY_POINTS}"]  my_package = "my_package:configs"'
    require(bool(points), f"{pyproject} brings no configs; add these two lines to it: {example}")
    module, _, configs = next(iter(points.values())).partition(":")
    inside = Path(*module.split("."))
    folders = [pyproject.parent / "src" / inside, pyproject.parent / inside]
    source = next((folder for folder in folders if folder.is_dir()), None)
    if source is None:
        raise UserError(f"{pyproject} registers {module!r}, but there is neither {folders[0]} nor {folders[1]}")
    return module, configs, source


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _write(targets: dict[Path, str | None], **values: str) -> list[Path]:
    if taken := [path for path in targets if path.exists()]:
        raise UserError(f"{taken[0]} exists already; nothing was written")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False)
    values["title"] = _title(values["name"])
    for path, template in targets.items():
        text = f'"""{values["package"]}: methods for fnll."""\n'
        if template is not None:
            text = environment.from_string((files("fnll.cli") / "templates" / f"{template}.j2").read_text()).render(
                values
            )
        make_folder(path.parent)
        write_file(path, text)
    return list(targets)
