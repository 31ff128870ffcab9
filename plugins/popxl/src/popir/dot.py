"""Graphs as graphviz draws them."""

from __future__ import annotations

from popir.ir import Ir, IrGraph


def dot_of(ir: Ir) -> str:
    """Return all graphs of `ir` in graphviz's language: operators, and tensors between
    them.
    """
    lines = ["digraph ir {"]
    for number, graph in enumerate(ir.graphs.values()):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_quoted(graph.id or 'main')};")
        lines += [f"    {line}" for line in _operators(graph)]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _operators(graph: IrGraph) -> list[str]:
    lines = []
    for op in graph.operators:
        lines.append(f"op{op.id} [shape=box, label={_quoted(op.type)}];")
        for tensor in op.connected:
            source = tensor.producer
            known = f"op{source.id}" if source else _quoted(f"{graph.id}/{tensor.id}")
            label = f"{tensor.id} {tensor.dtype}{list(tensor.shape)}"
            lines.append(f"{known} -> op{op.id} [label={_quoted(label)}];")
    return lines


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
