"""All writing and removing goes through `fnll.system.files`: nobody goes around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fnll

SOURCE = Path(fnll.__file__).parent
OWNER = "system/files.py"
ALLOWED = {  # what looks like writing and is none
    ("cli/__init__.py", "os.open"),  # /dev/null
    ("executors/arena.py", "os.fdopen"),  # memory that was received or made without a name
    ("executors/arena.py", "os.ftruncate"),
    ("executors/arena.py", "tempfile.TemporaryFile"),  # a file without a name
    ("harness/checkpoint.py", "safetensors.torch.save"),  # gives bytes
    ("harness/execute.py", "safetensors.torch.save"),
    ("harness/observer.py", "self.checkpoints.save"),  # uses files.py itself
    ("testing/checks.py", "Checkpoints(folder, 'check').save"),
    ("system/foreign.py", "os.open"),  # for reading
    ("audit/page.py", "image.save"),  # into memory
    ("plotting/style.py", "figure.savefig"),  # into memory
    ("scenario/file_format.py", "np.savez_compressed"),
    ("scenario/file_format.py", "zipfile.ZipFile"),
    ("scenario/noise/annotator.py", "np.savez"),
}
MODULES = {"shutil": {"which", "get_terminal_size", "disk_usage"}, "tempfile": {"gettempdir"}}  # harmless parts of them
ALWAYS = {  # whatever it is called on
    "write_text", "write_bytes", "unlink", "rmdir", "mkdir", "makedirs", "touch", "symlink_to", "hardlink_to",
    "removedirs", "truncate", "ftruncate", "savefig", "savez", "savez_compressed", "savetxt", "tofile", "extractall",
    "rmtree", "copytree", "copyfile", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile",
    "FileLock", "SoftFileLock", "save_file", "mkfifo", "mknod", "chmod", "chown", "fdopen", "memmap", "FileIO", "utime",
    "write_image", "write_html", "imsave", "imwrite",
}  # fmt: skip
WITH_ARGUMENT = {  # `table.rename(columns=...)` and `sink.save()` are harmless
    "save", "rename", "renames", "extract", "to_csv", "to_json", "to_html", "to_latex", "to_markdown", "to_parquet",
    "to_pickle", "to_excel", "to_feather", "to_hdf",
}  # fmt: skip
OF_OS = {"open", "remove", "replace", "link", "symlink", "truncate"}
OPENING = {"open": 1, "fdopen": 1, "ZipFile": 1, "open_memmap": 1, "GzipFile": 1, "TarFile": 1}


def writings(tree: ast.AST) -> Iterator[str]:
    """The calls in a module that write or remove files, as far as one can see."""
    ours = set(_ours(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in ours and _writes(node):
            yield ast.unparse(node.func)


def _ours(tree: ast.AST) -> Iterator[str]:
    """Functions of our own, which are looked at where they are defined."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fnll."):
            yield from (alias.asname or alias.name for alias in node.names)


def _writes(call: ast.Call) -> bool:
    function = call.func
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    if owner in MODULES:
        return name not in MODULES[owner]
    if owner == "os" and name in OF_OS:
        return True
    if name in ALWAYS or (name in WITH_ARGUMENT and call.args):
        return True
    if name == "replace" and len(call.args) == 1 and not call.keywords and owner:
        return True  # of a path; a string's has two, a dataclass's has keywords
    return name in OPENING and _opens_to_write(call, name, owner)


def _opens_to_write(call: ast.Call, name: str, owner: str) -> bool:
    place = OPENING[name]
    if name == "open" and owner and owner not in ("io", "gzip", "bz2", "lzma", "tarfile", "codecs", "Image"):
        place = 0  # a path's own
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] or call.args[place : place + 1]
    if not given:
        return False  # for reading
    mode = given[0]
    return not (isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rbtUc"))


def test_only_one_module_writes_and_removes():
    found = {
        (path.relative_to(SOURCE).as_posix(), call)
        for path in SOURCE.rglob("*.py")
        for call in writings(ast.parse(path.read_text()))
    }
    around = {pair for pair in found if pair[0] != OWNER} - ALLOWED
    assert not around, f"use fnll.system.files instead: {sorted(around)}"
    assert found >= ALLOWED, f"no longer there, take it off the list: {sorted(ALLOWED - found)}"


@pytest.mark.parametrize(
    "code",
    [
        "open(x, 'w')", "open(x, mode='ab')", "open(x, mode)", "open(x, 'r+')", "path.open('a')", "os.open(x, 0)",
        "path.write_text(x)", "path.unlink()", "shutil.rmtree(x)", "shutil.copy(x, y)", "os.replace(x, y)",
        "path.replace(y)", "path.rename(y)", "path.mkdir()", "np.save(x, y)", "torch.save(x, y)", "figure.savefig(x)",
        "frame.to_csv(x)", "tempfile.mkdtemp()", "rmtree(x)", "FileLock(x)", "zipfile.ZipFile(x, 'w')",
        "from torch import save; save(x, y)",
        "open_memmap(x, mode='w+')", "gzip.open(x, 'wb')", "archive.extractall(x)", "os.remove(x)", "path.touch()",
    ],
)  # fmt: skip
def test_writing_is_recognised(code):
    assert list(writings(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["open(x)", "open(x, 'rb')", "path.open()", "path.read_text()", "text.replace('a', 'b')", "replace(x, y=1)",
     "frame.to_csv(index=False)", "frame.rename(columns=x)", "sink.save()", "shutil.which(x)",
     "open_memmap(x, mode='c')",
     "from fnll.plotting.style import save; save(x, y)", "Image.open(x)", "zipfile.ZipFile(x)"],
)  # fmt: skip
def test_reading_is_not(code):
    assert not list(writings(ast.parse(code)))
