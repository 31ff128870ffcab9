"""Model folders as Triton's documented generators write them: dimensions without
names, a ``config.pbtxt`` for each model, sequences, ensembles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import NodeProto, TensorProto, helper

Dims: TypeAlias = Sequence[int | str | None]
#: Name, type as ONNX calls it, dimensions; None is a free one without a name.
Port: TypeAlias = tuple[str, str, Dims]

_TYPES = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16"}


def write_onnx(
    root: Path,
    name: str,
    nodes: Iterable[NodeProto],
    inputs: Iterable[Port],
    outputs: Iterable[Port],
    *,
    initializers: Iterable[onnx.TensorProto] = (),
    version: int = 1,
) -> Path:
    """``<name>/<version>/model.onnx``; the folder of the model."""
    infos = [
        [helper.make_tensor_value_info(n, getattr(TensorProto, kind), list(dims))
         for n, kind, dims in ports]
        for ports in (inputs, outputs)
    ]  # fmt: skip
    graph = helper.make_graph(list(nodes), name, *infos, list(initializers))
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    return root / name


def write_config(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(f'name: "{name}"\n{text}\n')


def tensors(word: str, ports: Mapping[str, tuple[str, str]]) -> str:
    """``input`` or ``output`` entries: type and dims (and more) by name."""
    return "\n".join(
        f'{word} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}'
        if "[" not in dims
        else f'{word} {{ name: "{name}" data_type: TYPE_{kind} {dims} }}'
        for name, (kind, dims) in ports.items()
    )


def add_sub(
    root: Path,
    name: str,
    *,
    max_batch_size: int = 8,
    more: str = "",
    first: Dims = (None,),
    dims: str = "16",
) -> None:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1: Triton's `simple`."""
    shape = [*first, 16]
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ports = [(n, "INT32", shape) for n in names]
    write_onnx(
        root,
        name,
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        ports[:2],
        ports[2:],
    )
    both = dict.fromkeys(names, ("INT32", dims))
    config = (
        f'platform: "onnxruntime_onnx" max_batch_size: {max_batch_size}\n'
        + tensors("input", {n: both[n] for n in names[:2]})
        + "\n"
        + tensors("output", {n: both[n] for n in names[2:]})
    )
    write_config(root, name, f"{config}\n{more}")


def identity(
    root: Path,
    name: str,
    *,
    shape: Dims = (None, None),
    dims: str = "-1",
    max_batch_size: int = 8,
    kind: str = "FLOAT",
    count: int = 1,
    more: str = "",
    output_dims: str | None = None,
) -> None:
    """OUTPUTi = INPUTi."""
    ins = [(f"INPUT{i}", kind, shape) for i in range(count)]
    outs = [(f"OUTPUT{i}", kind, shape) for i in range(count)]
    word = _TYPES.get(kind, kind)
    write_onnx(
        root,
        name,
        [
            helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"])
            for i in range(count)
        ],
        ins,
        outs,
    )
    given = dims if output_dims is None else output_dims
    config = (
        f'platform: "onnxruntime_onnx" max_batch_size: {max_batch_size}\n'
        + tensors("input", {n: (word, dims) for n, _, _ in ins})
        + "\n"
        + tensors("output", {n: (word, given) for n, _, _ in outs})
    )
    write_config(root, name, f"{config}\n{more}")


def ensemble(
    root: Path,
    name: str,
    steps: Sequence[tuple[str, Mapping[str, str], Mapping[str, str]]],
    inputs: Mapping[str, tuple[str, str]],
    outputs: Mapping[str, tuple[str, str]],
    *,
    max_batch_size: int = 0,
) -> None:
    """Steps are (model, input map, output map); a model may be ``name:version``."""

    def entries(word: str, names: Mapping[str, str]) -> str:
        return " ".join(
            f'{word} {{ key: "{key}" value: "{value}" }}'
            for key, value in names.items()
        )

    written = ",\n".join(
        f'{{ model_name: "{model.partition(":")[0]}" '
        f"model_version: {model.partition(':')[2] or -1} "
        f"{entries('input_map', taken)} {entries('output_map', given)} }}"
        for model, taken, given in steps
    )
    (root / name / "1").mkdir(parents=True)
    write_config(
        root,
        name,
        f'platform: "ensemble" max_batch_size: {max_batch_size}\n'
        f"{tensors('input', inputs)}\n{tensors('output', outputs)}\n"
        f"ensemble_scheduling {{ step [ {written} ] }}",
    )
