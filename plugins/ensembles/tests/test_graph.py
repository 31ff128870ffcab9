"""Ensembles on paper: what fits together, and what is said where it does not.

Covers: app/config/ensemble_config.py, app/serving/ensemble.py,
plugins/ensembles/src/popgate_ensembles/kind.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from app.config.config_keys import ModelConfigError
from app.config.ensemble_config import EnsembleConfig, StepConfig
from app.config.model_config import ModelConfig, parse_model_config
from app.limits import Limits
from app.serving.ensemble import Step as GraphStep
from app.serving.table import ModelTable
from app.serving.tensor_fit import common_shape
from app.spec import ModelSpec, TensorSpec
from engine import ObjectField
from engine.transport.messages import encode
from popgate_ensembles.graph import EnsembleGraph, Face, compose
from popgate_ensembles.kind import KIND
from popgate_ensembles.runner import EnsembleRunner
from popgate_workers.messages import (
    TO_WORKER,
    ModelChanged,
    SharedEnsemble,
    SharedEntry,
)


def tensor(text: str) -> TensorSpec:
    """`name:FP32:-1,4`; without a shape any rank is taken."""
    name, datatype, *shape = text.split(":")
    dims = tuple(int(n) for n in shape[0].split(",") if n) if shape else None
    return TensorSpec.make(name, datatype, dims)


def model(inputs: str, outputs: str, max_batch_size: int = 0) -> ModelSpec:
    return ModelSpec(
        "model",
        "1",
        tuple(tensor(text) for text in inputs.split()),
        tuple(tensor(text) for text in outputs.split()),
        max_batch_size,
    )


MODELS = {
    "scale": model("x:FP32:-1,4", "y:FP32:-1,4", 8),
    "sum": model("a:FP32:-1,4 b:FP32:-1,4", "s:FP32:-1,4", 4),
    "split": model("x:FP32:-1,4", "l:FP32:-1,4 r:FP32:-1,4", 16),
    "count": model("x:INT64:-1", "n:INT64:"),
    "wide": model("x:FP32:-1,8", "y:FP32:-1,8", 8),
    "fixed": model("x:FP32:2,4", "y:FP32:2,4"),
    "any": model("x:FP32", "y:FP32"),
}


Step: TypeAlias = tuple[str, dict[str, str], dict[str, str]]


def graph(*steps: Step, **options: Any) -> EnsembleGraph:
    made = tuple(StepConfig(m, 0, i, o) for m, i, o in steps)
    config = EnsembleConfig(made, **options)
    return compose("e", "1", config, [MODELS[m] for m, _, _ in steps])


def names(tensors: tuple[TensorSpec, ...]) -> list[str]:
    return [t.name for t in tensors]


def test_a_chain() -> None:
    made = graph(("scale", {"x": "in"}, {"y": "mid"}), ("scale", {"x": "mid"}, {}))
    assert names(made.spec.inputs) == ["in"]
    assert names(made.spec.outputs) == ["y"]
    assert made.spec.max_batch_size == 8
    assert [(s.needs, s.followers) for s in made.steps] == [(0, (1,)), (1, ())]
    assert made.spec.inputs[0].shape == (-1, 4)


def test_steps_in_any_order_that_run_beside_each_other() -> None:
    made = graph(
        ("sum", {"a": "left", "b": "right"}, {"s": "total"}),
        ("scale", {"x": "in"}, {"y": "left"}),
        ("scale", {"x": "in"}, {"y": "right"}),
    )
    assert [s.needs for s in made.steps] == [2, 0, 0]
    assert [s.followers for s in made.steps] == [(), (0,), (0,)]
    assert made.spec.max_batch_size == 4
    assert names(made.spec.inputs) == ["in"]


def test_a_step_that_takes_two_tensors_of_another_waits_once() -> None:
    made = graph(("split", {}, {"l": "p", "r": "q"}), ("sum", {"a": "p", "b": "q"}, {}))
    assert made.steps[1].needs == 1


def test_outputs_may_be_chosen_and_dropped() -> None:
    first: Step = ("scale", {}, {"y": "mid"})
    second: Step = ("scale", {"x": "mid"}, {"y": "end"})
    made = graph(first, second, outputs=("end", "mid"))
    assert names(made.spec.outputs) == ["end", "mid"]
    made = graph(("split", {}, {"l": "only"}))
    assert names(made.spec.outputs) == ["only"]


def test_a_model_that_is_not_batched_makes_all_of_it_so() -> None:
    made = graph(("scale", {}, {"y": "mid"}), ("fixed", {"x": "mid"}, {"y": "end"}))
    assert made.spec.max_batch_size == 0
    assert made.spec.inputs[0].shape == (-1, 4)


def test_an_input_has_the_shape_that_all_who_take_it_take() -> None:
    made = graph(
        ("any", {"x": "in"}, {"y": "one"}),
        ("scale", {"x": "in"}, {"y": "two"}),
        ("fixed", {"x": "in"}, {"y": "three"}),
    )
    assert made.spec.inputs[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("steps", "options", "text"),
    [
        (
            [("scale", {"z": "in"}, {})],
            {},
            "step 1 (scale): the model has no input 'z'",
        ),
        ([("scale", {}, {"z": "o"})], {}, "the model has no output 'z'; it has ['y']"),
        (
            [("scale", {}, {"y": "t"}), ("scale", {}, {"y": "t"})],
            {},
            "tensor 't' has two sources: step 1 (scale) and step 2 (scale)",
        ),
        (
            [("scale", {}, {"y": "t"}), ("count", {"x": "t"}, {})],
            {},
            "output 'y' of step 1 (scale) is FP32, but input 'x' of step 2 (count) is",
        ),
        (
            [("scale", {}, {"y": "t"}), ("wide", {"x": "t"}, {"y": "u"})],
            {},
            "has shape [-1, 4], but input 'x' of step 2 (wide) expects [-1, 8]",
        ),
        (
            [("scale", {"x": "in"}, {"y": "t"}), ("wide", {"x": "in"}, {})],
            {},
            "input 'x' of step 1 (scale) has shape [-1, 4]",
        ),
        (
            [
                ("scale", {"x": "p"}, {"y": "q"}),
                ("sum", {"a": "q", "b": "in"}, {"s": "p"}),
            ],
            {"outputs": ("q",)},
            "the steps form a circle: step 1 (scale), step 2 (sum)",
        ),
        ([("scale", {"x": "p"}, {"y": "p"})], {}, "so the ensemble has no input"),
        ([("scale", {}, {})], {"outputs": ("z",)}, "no step produces the output 'z'"),
        (
            [("scale", {"x": "imgae"}, {})],
            {"inputs": ("image",)},
            "takes 'imgae', which neither a step produces nor the inputs",
        ),
        (
            [("scale", {"x": "in"}, {})],
            {"inputs": ("in", "more")},
            "no step takes the declared input 'more'",
        ),
    ],
)
def test_what_does_not_fit(
    steps: list[tuple[str, Any, Any]], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        graph(*steps, **options)


def test_common_shapes() -> None:
    assert common_shape(None, None) is None
    assert common_shape(None, (3,)) == (3,)
    assert common_shape((-1, 4), (2, -1)) == (2, 4)
    for first, second in (((1,), (1, 1)), ((2,), (3,)), ((0,), (1,))):
        with pytest.raises(ValueError, match="differ"):
            common_shape(first, second)


def config(**ensemble: Any) -> ModelConfig:
    return parse_model_config({"ensemble": ensemble})


def test_the_configuration() -> None:
    made = config(step=[{"model": "m", "inputs": {"x": "in"}, "version": 3}])
    assert made.ensemble is not None
    assert made.ensemble.step == (StepConfig("m", 3, {"x": "in"}, {}),)


@pytest.mark.parametrize(
    ("ensemble", "more", "text"),
    [
        ({}, {}, "the ensemble has no step"),
        ({"step": [{}]}, {}, "model is missing"),
        (
            {"step": [{"model": "m", "inputs": {"x": 1}}]},
            {},
            "inputs.x must be a string, got 1",
        ),
        ({"step": [{"model": "m"}], "outputs": ["a", "a"]}, {}, "without duplicates"),
        ({"step": [{"model": "m"}] * 101}, {}, "at most 100"),
        (
            {"step": [{"model": "m"}]},
            {"instances": 2},
            "an ensemble cannot have instances",
        ),
        (
            {"step": [{"model": "m"}]},
            {"max_batch_size": 2},
            "cannot have max_batch_size",
        ),
    ],
)
def test_configurations_that_cannot_be(
    ensemble: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_model_config({"ensemble": ensemble, **more})
    assert text in str(caught.value)


def test_it_arrives_in_a_worker_as_it_was_and_knows_its_members() -> None:
    x, y = (TensorSpec.make(name, "FP32", (-1, 2)) for name in "xy")
    member = ModelSpec("m", "1", (x,), (y,), max_batch_size=8)
    step = GraphStep("step 1 (m)", "m", 0, (("x", "a"),), (("y", "b"),), 0, ())
    whole = ModelSpec("e", "1", (x,), (y,), max_batch_size=8)
    faces = (Face("x", (-1, 2), None),), (Face("y", (-1, 2), (-1, 2)),)
    graph = EnsembleGraph(whole, (step,), *faces)
    table = ModelTable(Limits())
    made = EnsembleRunner(graph, [member], table, lambda members: graph)
    sent = SharedEntry(
        6, 2, ObjectField(whole), SharedEnsemble(made.shared, (ObjectField(member),))
    )
    message = TO_WORKER.decode(encode(ModelChanged(1, "e", "1", (sent,), ())))
    assert isinstance(message, ModelChanged)
    shared = message.entries[0].runner
    assert isinstance(shared, SharedEnsemble)
    joined = KIND.join(shared.graph, [one.value for one in shared.members], table)
    assert joined.graph.steps == (step,)
    assert (joined.graph.inputs, joined.graph.outputs) == faces
    assert joined.compose([member]) is joined.graph
    with pytest.raises(ValueError, match="other tensors"):
        joined.compose([replace(member, inputs=(y,))])
