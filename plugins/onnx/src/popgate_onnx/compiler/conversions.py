"""Conversions that make the default output of model converters servable.

- A `ZipMap` that produces an output is replaced by the tensor that it reads. Its
  classes become the labels of that output. scikit-learn, LightGBM and XGBoost models
  have such outputs: one map from class to probability for each row.
- A `StringNormalizer` requests the locale ``en_US``, which slim container images lack.
  ``C.UTF-8`` replaces it. Every C library has that locale, and it converts letters to
  the same case.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from popgate_onnx.compiler.graphs import all_nodes

Labels: TypeAlias = dict[str, tuple[str, ...]]
"""The names of the classes, in order, for each output with one number per class."""

PORTABLE_LOCALE = b"C.UTF-8"
_OPSET = 13  # for a model that names no version of ONNX's own operators


def convert(model: Any) -> Labels:
    """Change `model` as described above. Return the labels that it had."""
    _use_portable_locales(model)
    return _drop_zip_maps(model)


def _drop_zip_maps(model: Any) -> Labels:
    import onnx

    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    read = {name for node in all_nodes(graph) for name in node.input}
    labels: Labels = {}
    for node in graph.node:
        if node.op_type != "ZipMap" or len(node.output) != 1 or len(node.input) != 1:
            continue
        name = node.output[0]
        if name not in outputs or name in read:
            continue  # something else reads the maps
        labels[name] = classes = _classes(node)
        node.op_type, node.domain = "Cast", ""
        del node.attribute[:]
        number = _set_rows(outputs[name], len(classes))
        node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=number)
    if labels and not any(opset.domain == "" for opset in model.opset_import):
        model.opset_import.add(domain="", version=_OPSET)
    return labels


def _classes(node: Any) -> tuple[str, ...]:
    for attribute in node.attribute:
        if attribute.strings:
            return tuple(text.decode(errors="replace") for text in attribute.strings)
        if attribute.ints:
            return tuple(map(str, attribute.ints))
    return ()


def _set_rows(value: Any, classes: int) -> int:
    """Make an output of maps a tensor of rows, with a number for each class. Return the
    type of the numbers: converters declare doubles too, which ZipMap does not take.
    """
    import onnx

    maps = value.type.sequence_type.elem_type.map_type
    number: int = maps.value_type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    tensor = value.type.tensor_type
    tensor.elem_type = number
    tensor.shape.dim.add()
    if classes:
        tensor.shape.dim.add().dim_value = classes
    else:
        tensor.shape.dim.add()
    return number


def _use_portable_locales(model: Any) -> None:
    for node in all_nodes(model.graph):
        if node.op_type != "StringNormalizer" or node.domain not in ("", "ai.onnx"):
            continue
        named = [a for a in node.attribute if a.name == "locale"]
        if not named:
            named = [node.attribute.add(name="locale", type=_string_type())]
        if not named[0].s or named[0].s.startswith(b"en"):
            named[0].s = PORTABLE_LOCALE


def _string_type() -> Any:
    import onnx

    return onnx.AttributeProto.STRING
