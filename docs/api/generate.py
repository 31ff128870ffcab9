"""Writes the reference of the public names: `make docs-api`.

Read from the syntax trees, so that nothing is imported and compiled modules give the
same pages: a page for a package, of what its `__init__.py` or `public.py` hands on.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "popef_io")
WIDTH = 88
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def page(package: str) -> str:
    """The page of a package, in Markdown."""
    init = names_in = _tree(f"{package}/__init__.py")
    if (ROOT / package / "public.py").exists():
        names_in = _tree(f"{package}/public.py")
    public = next(
        ast.literal_eval(node.value)
        for node in names_in.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    lines = [
        f"# `{package}`: reference",
        "",
        "Written by `make docs-api` from the docstrings; change those.",
        "",
        _doc(init),
    ]
    for node in names_in.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        names = [n for n in node.names if (n.asname or n.name) in public]
        if names:
            path = node.module.replace(".", "/") + ".py"
            tree = _tree(path)
            lines += ["", f"## [{path}](../../{path})", "", _doc(tree)]
            for name in names:
                lines += ["", f"### `{name.asname or name.name}`", ""]
                source = (ROOT / path).read_text().splitlines()
                lines += _entry(name.name, tree, source)
    text = "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


def _doc(node: ast.Module | ast.ClassDef | _Function) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def _entry(name: str, tree: ast.Module, source: list[str]) -> Iterator[str]:
    """One public name: a class with its public parts, a function, or a value."""
    # Also what is made one way or another, by the version of Python: the first way.
    inner = [
        each for node in tree.body if isinstance(node, ast.If) for each in node.body
    ]
    for node in [*tree.body, *inner]:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from _class(node)
        elif isinstance(node, _Function) and node.name == name:
            yield from (*_code(_declared(node)), "", _doc(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _target(node) == name:
            above = node.lineno - 2
            while source[above].startswith("#"):
                above -= 1
            words = [each.lstrip("#: ") for each in source[above + 1 : node.lineno - 1]]
            yield from (*_code(ast.unparse(node)), "", *words)


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(map(ast.unparse, node.bases))
    members = [f"    {ast.unparse(each)}" for each in node.body if _is_shown(each)]
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    members += [
        _signature(each, "    ")
        for each in node.body
        if isinstance(each, _Function) and each.name == "__init__"
    ]
    marks = _marks(node)
    yield from _code("\n".join([*marks, head, *members] if members else [head[:-1]]))
    yield from ("", _doc(node))
    for each in node.body:
        if not isinstance(each, _Function) or each.name.startswith("_"):
            continue
        if any(mark.endswith((".setter", "overload")) for mark in _marks(each)):
            continue
        yield from ("", f"#### `{node.name}.{each.name}`", "", *_code(_declared(each)))
        yield from ("", _doc(each))


def _marks(node: ast.ClassDef | _Function) -> list[str]:
    return [f"@{ast.unparse(mark)}" for mark in node.decorator_list]


def _declared(node: _Function) -> str:
    return "\n".join([*_marks(node), _signature(node)])


def _is_shown(node: ast.stmt) -> bool:
    """Whether it is a field of a dataclass, a member of an enumeration or the like."""
    return isinstance(node, ast.Assign | ast.AnnAssign) and not _target(
        node
    ).startswith("_")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    first = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return ast.unparse(first)


def _signature(node: _Function, indent: str = "") -> str:
    """As it is written; a parameter a line where it is too long for one."""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{indent}{kind} {node.name}({ast.unparse(node.args)}){result}"
    if len(whole) <= WIDTH:
        return whole
    # Split at the commas between parameters, not at those inside annotations.
    parts, depth, last = [], 0, 0
    text = ast.unparse(node.args)
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append(text[last : at + 1].strip())
            last = at + 1
    parts.append(text[last:].strip() + ",")
    inner = "\n".join(f"{indent}    {part}" for part in parts)
    return f"{indent}{kind} {node.name}(\n{inner}\n{indent}){result}"


def _code(text: str) -> list[str]:
    return ["```python", text, "```"]


if __name__ == "__main__":
    for name in PACKAGES:
        (Path(__file__).parent / f"{name}.md").write_text(page(name), encoding="utf-8")
