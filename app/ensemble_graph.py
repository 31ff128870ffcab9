"""The graph of an ensemble, checked against the models that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.ensemble_config import EnsembleConfig, StepConfig
from app.spec import ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Step:
    """A step that can be run: (tensor of the model, tensor of the ensemble) each.

    `needs` counts the steps whose outputs it waits for, `followers` are those that wait
    for it.
    """

    label: str
    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    needs: int = 0
    followers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EnsembleGraph:
    """The steps in the order in which they were written, and the whole as a model."""

    spec: ModelSpec
    steps: tuple[Step, ...]


def label_of(number: int, step: StepConfig) -> str:
    """A step as messages call it."""
    return f"step {number + 1} ({step.model})"


def compose(
    name: str, version: str, config: EnsembleConfig, members: Sequence[ModelSpec]
) -> EnsembleGraph:
    """The graph of an ensemble whose steps run `members`, in the same order.

    Raises ValueError for a tensor that a model does not have, one that two steps give,
    types and shapes that do not fit, and steps that wait for each other.
    """
    steps = [
        _step(label_of(n, step), step, spec)
        for n, (step, spec) in enumerate(zip(config.step, members, strict=True))
    ]
    producers = _producers(steps)
    tensors = _tensors(steps, members, producers)
    inputs = [name for name in tensors if name not in producers]
    _check_inputs(config, steps, inputs)
    outputs = _outputs(config, steps, producers)
    batched = all(member.is_batched for member in members)
    rows = [member.max_rows for member in members if member.max_rows]
    spec = ModelSpec(
        name,
        version,
        tuple(tensors[name] for name in config.inputs or inputs),
        tuple(tensors[name] for name in outputs),
        min(member.max_batch_size for member in members) if batched else 0,
        min(rows, default=0) if batched else 0,
    )
    return EnsembleGraph(spec, _linked(steps, producers))


def _step(label: str, config: StepConfig, spec: ModelSpec) -> Step:
    for kind, given, known in (
        ("input", config.inputs, spec.inputs_by_name),
        ("output", config.outputs, spec.outputs_by_name),
    ):
        for name in given:
            if name not in known:
                msg = f"{label}: the model has no {kind} {name!r}, it has {list(known)}"
                raise ValueError(msg)
    inputs = tuple((n, config.inputs.get(n, n)) for n in spec.inputs_by_name)
    outputs = tuple(config.outputs.items()) or tuple(
        (n, n) for n in spec.outputs_by_name
    )
    return Step(label, config.model, config.version, inputs, outputs)


def _producers(steps: Sequence[Step]) -> dict[str, int]:
    """The step that gives each tensor."""
    producers: dict[str, int] = {}
    for number, step in enumerate(steps):
        for _, tensor in step.outputs:
            if tensor in producers:
                other = steps[producers[tensor]].label
                msg = f"tensor {tensor!r} comes from {other} and from {step.label}"
                raise ValueError(msg)
            producers[tensor] = number
    return producers


def _tensors(
    steps: Sequence[Step], members: Sequence[ModelSpec], producers: dict[str, int]
) -> dict[str, TensorSpec]:
    """Every tensor, with what is known of its type and shape."""
    found: dict[str, tuple[str, TensorSpec]] = {}
    for step, member in zip(steps, members, strict=True):
        for own, tensor in step.outputs:
            spec = replace(member.outputs_by_name[own], name=tensor)
            found[tensor] = f"output {own!r} of {step.label}", spec
    for step, member in zip(steps, members, strict=True):
        for own, tensor in step.inputs:
            where = f"input {own!r} of {step.label}"
            spec = replace(member.inputs_by_name[own], name=tensor)
            if tensor not in found:
                found[tensor] = where, spec
                continue
            other, known = found[tensor]
            if known.datatype != spec.datatype:
                msg = (
                    f"tensor {tensor!r}: {other} is {known.datatype}, {where} is "
                    f"{spec.datatype}"
                )
                raise ValueError(msg)
            try:
                shape = common_shape(known.shape, spec.shape)
            except ValueError:
                msg = (
                    f"tensor {tensor!r}: {other} has shape {_shown(known.shape)}, "
                    f"{where} takes {_shown(spec.shape)}"
                )
                raise ValueError(msg) from None
            # What a step gives has the shape that the step says.
            if tensor not in producers:
                found[tensor] = other, replace(known, shape=shape)
    return {tensor: spec for tensor, (_, spec) in found.items()}


def common_shape(
    first: tuple[int, ...] | None, second: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """The shape that satisfies both; -1 is any size. Raises ValueError."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        raise ValueError("ranks differ")
    if any(a != b and -1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise ValueError("sizes differ")
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


def _shown(shape: tuple[int, ...] | None) -> str:
    return "of any rank" if shape is None else str(list(shape))


def _check_inputs(
    config: EnsembleConfig, steps: Sequence[Step], inputs: Sequence[str]
) -> None:
    if not inputs:
        raise ValueError("every step waits for another: no input is left")
    if config.inputs and set(config.inputs) != set(inputs):
        unknown = [name for name in inputs if name not in config.inputs]
        if unknown:
            taker = _first(steps, lambda step: unknown[0] in dict(step.inputs).values())
            msg = (
                f"{taker.label} takes {unknown[0]!r}, which no step gives and which is "
                f"not among the inputs {list(config.inputs)}"
            )
            raise ValueError(msg)
        unused = [name for name in config.inputs if name not in inputs]
        raise ValueError(f"no step takes the input {unused[0]!r} from outside")


def _outputs(
    config: EnsembleConfig, steps: Sequence[Step], producers: dict[str, int]
) -> Sequence[str]:
    taken = {tensor for step in steps for _, tensor in step.inputs}
    for name in config.outputs:
        if name not in producers:
            msg = f"no step gives the output {name!r}; there are {list(producers)}"
            raise ValueError(msg)
    outputs = config.outputs or [name for name in producers if name not in taken]
    if not outputs:
        raise ValueError("every tensor is taken by a step: name the outputs")
    return outputs


def _linked(steps: Sequence[Step], producers: dict[str, int]) -> tuple[Step, ...]:
    """The steps with who waits for whom; ValueError where that goes round."""
    needs = [
        {producers[tensor] for _, tensor in step.inputs if tensor in producers}
        for step in steps
    ]
    waiting = dict(enumerate(needs))
    while ready := [n for n, others in waiting.items() if not others & waiting.keys()]:
        for number in ready:
            del waiting[number]
    if waiting:
        labels = ", ".join(steps[n].label for n in waiting)
        raise ValueError(f"steps wait for each other: {labels}")
    return tuple(
        replace(
            step,
            needs=len(needs[n]),
            followers=tuple(m for m, others in enumerate(needs) if n in others),
        )
        for n, step in enumerate(steps)
    )


def _first(steps: Iterable[Step], holds: Callable[[Step], bool]) -> Step:
    return next(step for step in steps if holds(step))
