"""The statements of a source, for tests that read sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements of a tree, each before those inside it.

    `ast.walk` visits ten times as many nodes, because it visits expressions, too.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        inside: list[ast.AST] = []
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inside += getattr(node, name, ())
        waiting += reversed(inside)
