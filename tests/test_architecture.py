"""The house rules that a machine can hold: who imports whom; file sizes are an aim.

    popef_io  <-  engine  <-  app          compat stands over the first two

Imports are read from the syntax tree, so nothing is imported or run here.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("popef_io", "engine", "app", "compat")

#: What each of our packages may import of the others.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "popef_io": frozenset(),
    "engine": frozenset({"popef_io"}),
    "app": frozenset({"popef_io", "engine"}),
    "compat": frozenset({"popef_io", "engine"}),
}
#: Import names that the folder `compat` installs.
COMPAT_NAMES = frozenset({"model_runtime", "popef"})
WEB_AND_EVENT_LOOPS = frozenset(
    {"fastapi", "starlette", "uvicorn", "uvloop", "httptools", "http", "httpx"}
    | {"aiohttp", "pydantic", "pydantic_settings", "asyncio", "anyio", "trio"}
    | {"gevent", "socketserver"}
)
#: Roots beside the packages' own: those who only run models need not import onnx.
OTHER_ROOTS = frozenset({"engine.compiler"})
#: An aim, no reason to cut a noun in two: larger files are warned of.
LARGEST_FILE = 500


class Import(NamedTuple):
    """One imported module, as a dotted name, and where it is said."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool  # runs when the module is imported: no function, no TYPE_CHECKING


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _statements(body: list[ast.stmt], at_top: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement of a body with whether it runs at import."""
    for node in body:
        yield node, at_top
        inside = (
            at_top
            and not _is_type_checking(node)
            and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, [])
            if isinstance(inner, list):
                yield from _statements(inner, inside)
        for branch in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
            yield from _statements(branch.body, inside)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports(path: Path) -> tuple[Import, ...]:
    found = []
    here = _module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node, at_top in _statements(_tree(path).body, True):
        if isinstance(node, ast.Import):
            found += [Import(a.name, (), node.lineno, at_top) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = tuple(alias.name for alias in node.names)
            found.append(Import(module, names, node.lineno, at_top))
    return tuple(found)


def _files(*packages: str) -> list[Path]:
    return sorted(
        path for package in packages for path in (ROOT / package).rglob("*.py")
    )


def _broken(path: Path, imported: Import) -> str:
    return f"{path.relative_to(ROOT)}:{imported.line} imports {imported.module}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    if package == "compat":
        allowed |= COMPAT_NAMES
    ours = {*PACKAGES, *COMPAT_NAMES, "tests", "bench", "examples"}
    assert [
        _broken(path, imported)
        for path in _files(package)
        for imported in _imports(path)
        if (top := imported.module.split(".")[0]) in ours and top not in allowed
    ] == []


@pytest.mark.parametrize("package", ["engine", "app", "compat"])
def test_other_packages_are_imported_by_their_root(package: str) -> None:
    assert [
        _broken(path, imported)
        for path in _files(package)
        for imported in _imports(path)
        if "." in imported.module
        and imported.module not in OTHER_ROOTS
        and (top := imported.module.split(".")[0]) in PACKAGES
        and top != package
    ] == []


def _edges() -> dict[str, set[str]]:
    """Module to the modules of ours that importing it runs, root packages included."""
    files = {_module_name(path): path for path in _files(*PACKAGES)}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        targets = set()
        for imported in _imports(path):
            if not imported.at_top:
                continue
            inner = {f"{imported.module}.{each}" for each in imported.names} & set(
                files
            )
            # `from package import module` needs the module; the package only if
            # something else of it is named too.
            targets |= inner
            if len(inner) < max(1, len(imported.names)):
                targets |= {imported.module} & set(files)
        edges[name] = targets
    return edges


def test_modules_do_not_import_in_a_circle() -> None:
    edges = _edges()
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for target in sorted(edges[module]):
                visit(target, (*trail, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())
    assert done == set(edges)


def test_engine_knows_no_web_framework_and_no_event_loop() -> None:
    assert [
        _broken(path, imported)
        for path in _files("popef_io", "engine")
        for imported in _imports(path)
        if imported.module.split(".")[0] in WEB_AND_EVENT_LOOPS
    ] == []


def test_container_needs_little() -> None:
    allowed = sys.stdlib_module_names | {"msgpack", "numpy", "popef_io"}
    assert [
        _broken(path, imported)
        for path in _files("popef_io")
        for imported in _imports(path)
        if imported.module.split(".")[0] not in allowed
    ] == []


def test_one_file_knows_the_bytes_of_the_container() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in _files("popef_io")
        for imported in _imports(path)
        if imported.module == "struct"
    }
    assert users <= {"popef_io/layout.py"}


def test_no_code_comes_from_data() -> None:
    forbidden_modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    forbidden_calls = {"eval", "exec"}
    broken = []
    for path in _files(*PACKAGES):
        broken += [
            _broken(path, imported)
            for imported in _imports(path)
            if imported.module.split(".")[0] in forbidden_modules
        ]
        broken += [
            f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(_tree(path))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in forbidden_calls
        ]
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    pages = {path.name for path in docs.glob("*.md")} - {"README.md"}
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "README.md").read_text()))
    assert named == pages


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")]
    assert [
        f"{document.relative_to(ROOT)} links to {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
        if not (document.parent / target).exists()
    ] == []


def test_large_files_are_named() -> None:
    files = _files(*PACKAGES, "bench", "examples")
    assert files
    for path in files:
        lines = len(path.read_text().splitlines())
        if lines > LARGEST_FILE:
            name = path.relative_to(ROOT)
            warnings.warn(f"{name} has {lines} lines: two nouns?", stacklevel=1)


def test_the_reader_of_imports_sees_what_it_should() -> None:
    seen = _imports(Path(__file__))
    modules = {imported.module for imported in seen}
    assert {"ast", "pathlib", "collections.abc"} <= modules
    assert all(imported.at_top for imported in seen)
