"""`popgate validate` and `popgate serve` never disagree: what validate passes loads.

Many folders are made from a random choice of what a generator may write, most of them
with something wrong. Both look at all of them at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from app.api.examples import shown_shape
from plugins.triton.tests.folders import (
    Dims,
    ensemble,
    identity,
    tensors,
    write_config,
    write_onnx,
)
from plugins.triton.tests.test_serving import write_ensemble, write_simple
from popgate_admin.preview import ModelPreview, RepositoryPreview, preview_repository
from popgate_onnx.compile_cache import OnnxCompileCache
from tests.app.served import NOTHING_TAKEN, ServedGateway
from tests.engine import models

SEED = 20261122
PLAIN, SEQUENCES, ENSEMBLES = 40, 20, 60

_ONNX = {"FP32": "FLOAT", "INT32": "INT32", "STRING": "STRING"}


def _dims(shape: Dims) -> str:
    return ", ".join(str(d) if isinstance(d, int) else "-1" for d in shape)


class Maker:
    """Writes models whose every trait is drawn by lot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.draw = random.Random(SEED)
        self.names: list[str] = []
        self.clean = self.parts()

    def maybe(self, *choices: Any, often: int = 4) -> Any:
        """The first of the choices most of the time."""
        return self.draw.choice((*[choices[0]] * often, *choices[1:]))

    def plain(self, name: str) -> None:
        draw = self.draw
        kind = self.maybe("FP32", "INT32", "STRING", often=2)
        first: Dims = draw.choice([(None,), (None,), ("N",), (4,), (1,), ()])
        rest: Dims = draw.choice([(16,), (None,), (2, 3), ()])
        shape = (*first, *rest)
        count = draw.choice([1, 1, 2])
        names = [f"INPUT{i}" for i in range(count)]
        nodes = self._nodes(kind, count, shape)
        given = self._initializers(kind, names, shape)
        write_onnx(
            self.root,
            name,
            nodes,
            [(n, _ONNX[kind], shape) for n in names],
            [("OUTPUT0", _ONNX[kind], shape)],
            initializers=given,
        )
        batch = draw.choice([None, 0, 0, 1, 8, 8, 8])
        dims = _dims(rest if batch else shape)
        lines = [] if batch is None else [f"max_batch_size: {batch}"]
        if draw.random() < 0.85:
            lines += self._declared(kind, names, dims)
        lines.append(
            self.maybe("", "dynamic_batching { }",
                       "dynamic_batching { preferred_batch_size: [ 4 ] }",
                       "dynamic_batching { preferred_batch_size: [ 16 ] }",
                       "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"X\" }",
                       often=6)
        )  # fmt: skip
        if draw.random() < 0.35:
            lines.append(self._warmup(name, kind, names, dims, batch or 0))
        write_config(self.root, name, "\n".join(lines))
        options = self.maybe("", "batching = true", "batching = false",
                             "max_batch_size = 4", 'optional_inputs = ["INPUT1"]',
                             'labels = { OUTPUT0 = ["a"] }', often=8)  # fmt: skip
        if options:
            (self.root / name / "config.toml").write_text(options)

    def _nodes(self, kind: str, count: int, shape: Dims) -> list[Any]:
        if count == 2 and kind != "STRING":
            return [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"])]
        if kind == "FP32" and shape and self.draw.random() < 0.2:
            mean = helper.make_node("ReduceMean", ["INPUT0"], ["m"], axes=[0])
            return [mean, helper.make_node("Sub", ["INPUT0", "m"], ["OUTPUT0"])]
        return [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]

    def _initializers(self, kind: str, names: list[str], shape: Dims) -> list[Any]:
        if len(names) < 2 or kind == "STRING" or self.draw.random() < 0.5:
            return []
        dtype = np.float32 if kind == "FP32" else np.int32
        ones = np.ones([d if isinstance(d, int) else 1 for d in shape], dtype)
        return [numpy_helper.from_array(ones, names[1])]

    def _declared(self, kind: str, names: list[str], dims: str) -> Iterator[str]:
        draw = self.draw
        word = self.maybe(kind, "FP16", often=15)
        said = self.maybe(dims, "-1", "16", "1, 16", often=8)
        reshape = self.maybe(
            "", "reshape { shape: [ 16 ] }", "reshape { shape: [ 1, -1 ] }",
            "reshape { shape: [ ] }", often=8,
        )  # fmt: skip
        declared = names[: draw.choice([1, len(names), len(names), len(names)])]
        for number, name in enumerate(declared):
            optional = "optional: true" if number or draw.random() < 0.1 else ""
            text = f"dims: [ {said} ] {reshape} {optional}"
            yield tensors("input", {name: (word, text)})
        if draw.random() < 0.7:
            output = self.maybe("OUTPUT0", "OUTPUT9", often=12)
            yield tensors("output", {output: (kind, f"dims: [ {said} ] {reshape}")})

    def _warmup(
        self, name: str, kind: str, names: list[str], dims: str, batch: int
    ) -> str:
        draw = self.draw
        inputs = ""
        for each in names:
            shape = self.maybe(dims, "3", often=6).replace("-1", "2")
            source = draw.choice(["zero_data: true", "random_data: true", "file"])
            if source == "file":
                source = 'input_data_file: "data"'
                count = int(np.prod([int(d) for d in shape.split(",") if d.strip()]))
                self._file(name, kind, count * draw.choice([1, max(1, batch), 7]))
            inputs += (
                f'inputs {{ key: "{each}" value {{ data_type: TYPE_{kind} '
                f"dims: [ {shape} ] {source} }} }} "
            )
        rows = draw.choice([0, 1, batch, 3])
        return f'model_warmup {{ name: "w" batch_size: {rows} {inputs} }}'

    def _file(self, name: str, kind: str, count: int) -> None:
        if self.draw.random() < 0.2:
            return
        folder = self.root / name / "warmup"
        folder.mkdir(parents=True, exist_ok=True)
        element = b"\1\0\0\0x" if kind == "STRING" else b"\0\0\0\0"
        (folder / "data").write_bytes(element * count)

    def sequence(self, name: str) -> None:
        draw = self.draw
        batch = draw.choice([0, 8, 8])
        shape: Dims = (None, 1) if bool(batch) == (draw.random() < 0.85) else (1,)
        write_onnx(
            self.root,
            name,
            [
                helper.make_node("Add", ["X", "BEFORE"], ["sum"]),
                helper.make_node("Add", ["sum", "START"], ["AFTER"]),
                helper.make_node("Identity", ["sum"], ["Y"]),
            ],
            [(n, "INT32", shape) for n in ("X", "BEFORE", "START")],
            [(n, "INT32", shape) for n in ("Y", "AFTER")],
        )
        dims = self.maybe("1", "3", "-1", "1, 1", often=6)
        first = self.maybe(
            "", "zero_data: true", 'data_file: "first"', 'data_file: "none"', often=2
        )
        initial = f"initial_state {{ dims: [ {dims} ] {first} }}" if first else ""
        kind = self.maybe("INT32", "FP32", often=10)
        state = (
            f'state {{ input_name: "BEFORE" output_name: "AFTER" '
            f"data_type: TYPE_{kind} dims: [ {dims} ] {initial} }}"
        )
        control = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"
        start = f'control_input {{ name: "START" {control} }}'
        twice = f'{start} control_input {{ name: "X" {control} }}'
        controls = self.maybe(start, "", twice, often=6)
        how = self.maybe(
            "", "direct { max_queue_delay_microseconds: 9 }",
            "oldest { max_candidate_sequences: 2 preferred_batch_size: [ 4 ] }",
            "oldest { max_candidate_sequences: 2 preferred_batch_size: [ 99 ] }",
        )  # fmt: skip
        text = f"sequence_batching {{ {how} {controls} {state} }}"
        x = tensors("input", {"X": ("INT32", "1")})
        y = tensors("output", {"Y": ("INT32", "1")})
        write_config(self.root, name, f"max_batch_size: {batch} {x} {y} {text}")
        folder = self.root / name / "initial_state"
        folder.mkdir()
        (folder / "first").write_bytes(b"\0" * draw.choice([4, 4, 4, 12, 3]))

    def parts(self) -> list[str]:
        """Models with nothing wrong, for ensembles."""
        for name, shape, dims, batch in (
            ("part0", (None, 16), "16", 8),
            ("part1", (16,), "16", 0),
            ("part2", (None, None), "-1", 16),
            ("part3", (None, 16), "-1, 16", 0),
            ("part4", (None, 2, 3), "2, 3", 8),
        ):
            identity(self.root, name, shape=shape, dims=dims, max_batch_size=batch)
        return [f"part{number}" for number in range(5)]

    def ensemble(self, name: str) -> None:
        draw = self.draw
        parts = [draw.choice(self.clean) for _ in range(draw.choice([1, 1, 2]))]
        if draw.random() < 0.15:
            parts[-1] = draw.choice(self.names)
        parts[0] = self.maybe(parts[0], "nobody", name, often=20)
        steps = []
        for number, part in enumerate(parts):
            is_ensemble = part.startswith("ensemble")
            keys = ("IN", "OUT") if is_ensemble else ("INPUT0", "OUTPUT0")
            taken = "IN" if number == 0 else f"t{number}"
            given = "OUT" if number == len(parts) - 1 else f"t{number + 1}"
            steps.append((part, {keys[0]: taken}, {keys[1]: given}))
        kind = self.maybe("FP32", "INT32", often=12)
        dims = draw.choice(["16", "-1", "-1, 16", "2, 3", "-1, -1"])
        reshape = self.maybe(
            "", "reshape { shape: [ 16 ] }", "reshape { shape: [ -1 ] }"
        )
        ensemble(
            self.root,
            name,
            steps,
            {"IN": (kind, f"dims: [ {dims} ] {reshape}")},
            {"OUT": (kind, f"dims: [ {self.maybe(dims, '16', often=5)} ] {reshape}")},
            max_batch_size=draw.choice([0, 0, 1, 8, 8, 32]),
        )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    maker = Maker(folder)
    makes: list[tuple[str, int, Callable[[str], None]]] = [
        ("plain", PLAIN, maker.plain),
        ("sequence", SEQUENCES, maker.sequence),
        ("ensemble", ENSEMBLES, maker.ensemble),
    ]
    for word, count, make in makes:
        for number in range(count):
            name = f"{word}{number:03}"
            make(name)
            maker.names.append(name)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def validated(root: Path, cache: Path) -> RepositoryPreview:
    with closing(OnnxCompileCache(cache)) as compiled:
        return preview_repository(root, compiled, NOTHING_TAKEN)


@pytest.fixture(scope="module")
def served(
    root: Path, cache: Path, validated: RepositoryPreview
) -> Iterator[ServedGateway]:
    with ServedGateway(root, "--cache-dir", str(cache)) as gateway:
        yield gateway.wait_ready()


def test_the_verdicts_are_the_same(
    validated: RepositoryPreview, served: ServedGateway
) -> None:
    index = served.client.post("/v2/repository/index", json={}).json()
    loaded = {e["name"]: e.get("reason", "") for e in index if e["state"] == "READY"}
    refused = {e["name"]: e.get("reason", "") for e in index if e["state"] != "READY"}
    passed = {model.name for model in validated.models if model.is_served}
    problems = {m.name: list(m.problems) for m in validated.models}
    wrong = {n: refused[n] for n in passed - loaded.keys()}
    wrong |= {n: str(problems[n]) for n in loaded.keys() - passed}
    assert not wrong
    assert all(bool(problems[n]) == (n in refused) for n in problems)
    # The lot has drawn enough of both, of each kind.
    for kind, least in (("plain", 15), ("sequence", 4), ("ensemble", 8)):
        assert sum(name.startswith(kind) for name in loaded) >= least
        assert sum(name.startswith(kind) for name in refused) >= least


def test_what_they_say_of_tensors_is_the_same(
    validated: RepositoryPreview, served: ServedGateway
) -> None:
    for model in validated.models:
        if not model.is_served:
            continue
        spec = model.versions[-1].spec
        assert spec is not None
        metadata = served.client.get(f"/v2/models/{model.name}").json()
        config = served.client.get(f"/v2/models/{model.name}/config").json()
        assert config["max_batch_size"] == spec.max_batch_size
        for mine, theirs in (
            (spec.inputs, metadata["inputs"]),
            (spec.outputs, metadata["outputs"]),
        ):
            assert [(t.name, t.datatype, shown_shape(spec, t)) for t in mine] == [
                (t["name"], t["datatype"], t["shape"]) for t in theirs
            ]


def shown(root: Path) -> RepositoryPreview:
    with closing(OnnxCompileCache(root.parent / "cache")) as cache:
        return preview_repository(root, cache, NOTHING_TAKEN)


def model(found: RepositoryPreview, name: str) -> ModelPreview:
    return next(m for m in found.models if m.name == name)


def test_onnx_and_ensembles(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_ensemble(root, "both", "part1", "part2")
    write_simple(root, "policy", 1, 2, config="version_policy { all { } }")
    found = shown(root)
    assert found.is_good
    both = model(found, "both").versions[0].spec
    assert both is not None
    assert [t.name for t in both.inputs] == ["A", "B"]
    assert [v.version for v in model(found, "policy").versions] == [1, 2]
    assert model(found, "part1").memory > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_batchsize: 3", "m/config.pbtxt: unknown field"),
        (
            'input { name: "input" data_type: TYPE_INT8 dims: [ -1, 4 ] }',
            "m/config.pbtxt: input 'input' is declared as INT8, but",
        ),
    ],
)
def test_mistakes_begin_with_the_file(tmp_path: Path, text: str, problem: str) -> None:
    root = tmp_path / "models"
    (root / "m" / "1").mkdir(parents=True)
    models.affine(root / "m" / "1" / "m.popef")
    (root / "m" / "config.pbtxt").write_text(text)
    (said,) = shown(root).all_problems
    assert said.startswith(problem)
