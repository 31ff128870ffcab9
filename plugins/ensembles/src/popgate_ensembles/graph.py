"""The graph of an ensemble, checked against its member models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from app.config.declared import DeclaredTensor, DeclaredTensors
from app.config.ensemble_config import EnsembleConfig, StepConfig
from app.config.model_config import ModelConfig
from app.serving.ensemble import Step, label_of
from app.serving.tensor_fit import common_shape
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec

NOTHING_DECLARED = DeclaredTensors()


@dataclass(frozen=True, slots=True)
class Face:
    """An input or output of an ensemble: its shape for clients, and for the steps."""

    name: str
    outer: tuple[int, ...] | None
    inner: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class EnsembleGraph:
    """The steps in the order of the configuration, and the ensemble as a model."""

    spec: ModelSpec
    steps: tuple[Step, ...]
    inputs: tuple[Face, ...] = ()
    outputs: tuple[Face, ...] = ()

    def to_message(self) -> list[object]:
        groups = self.steps, self.inputs, self.outputs
        return [self.spec.to_message(), *(list(map(astuple, g)) for g in groups)]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> EnsembleGraph:
        spec, steps, *faces = message
        inputs, outputs = (tuple(Face(*map(_frozen, f)) for f in g) for g in faces)
        found = tuple(Step(*map(_frozen, step)) for step in steps)
        return cls(ModelSpec.from_message(spec), found, inputs, outputs)


def _frozen(value: Any) -> Any:
    """Return lists from msgpack as the original tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _TensorFacts:
    """Facts about a tensor, their source, and whether its first dimension
    counts rows.
    """

    where: str
    spec: TensorSpec
    batched: bool


def compose(
    name: str,
    version: str,
    config: EnsembleConfig,
    members: Sequence[ModelSpec],
    declared: DeclaredTensors = NOTHING_DECLARED,
) -> EnsembleGraph:
    """Return the graph of an ensemble whose steps run `members`, in the same order.

    `declared` are the declared inputs and outputs. If one of two connected tensors
    counts rows and the other does not, a first dimension of 1 is added or removed.

    Raises ValueError for a missing tensor of a model, a tensor with two sources,
    different types or shapes, and a circle of steps.
    """
    steps = [
        _step(label_of(n, step.model), step, spec, config)
        for n, (step, spec) in enumerate(zip(config.step, members, strict=True))
    ]
    producers = _producers(steps)
    facts = _tensors(steps, members, producers, declared)
    inputs = [name for name in facts if name not in producers]
    _check_inputs(config, steps, inputs)
    outputs = _outputs(config, steps, producers)
    batched = all(member.is_batched for member in members)
    most = min(member.max_batch_size for member in members) if batched else 0
    if declared.max_batch_size is not None:
        most, batched = declared.max_batch_size, declared.is_batched
        _check_rows(steps, members, declared)
    rows = [m.max_rows for m in members if m.max_rows and m.is_batched]
    taken = [
        _face(facts[name], declared.input(name), batched)
        for name in config.inputs or inputs
    ]
    given = [
        _given_face(facts[name], declared.output(name), batched) for name in outputs
    ]
    spec = ModelSpec(
        name,
        version,
        tuple(replace(facts[f.name].spec, shape=f.outer) for f in taken),
        tuple(replace(facts[f.name].spec, shape=f.outer) for f in given),
        most,
        min(rows, default=0) if batched else 0,
    )
    return EnsembleGraph(spec, _linked(steps, producers), tuple(taken), tuple(given))


def described(spec: ModelSpec, config: ModelConfig) -> ModelSpec:
    """Return the spec with the ensemble's own options. Raises ValueError."""
    unknown = set(config.labels).difference(spec.outputs_by_name)
    if unknown:
        raise ValueError(f"labels name {sorted(unknown)}, which are not outputs")
    if config.max_request_rows and not spec.is_batched:
        msg = "max_request_rows requires that every model of the ensemble is batched"
        raise ValueError(msg)
    most = [rows for rows in (spec.max_rows, config.max_request_rows) if rows]
    return replace(
        spec,
        outputs=tuple(
            replace(output, labels=config.labels.get(output.name, output.labels))
            for output in spec.outputs
        ),
        max_rows=min(most, default=0),
    )


def _check_rows(
    steps: Sequence[Step], members: Sequence[ModelSpec], declared: DeclaredTensors
) -> None:
    """Raise ValueError if a step takes fewer rows than the ensemble declares."""
    most = declared.max_batch_size or 0
    for step, member in zip(steps, members, strict=True):
        if member.is_batched and 0 < member.max_rows < most:
            msg = (
                f"{declared.label}: max_batch_size is {most}, but {step.label} takes "
                f"at most {counted(member.max_rows, 'row')}"
            )
            raise ValueError(msg)


def _face(facts: _TensorFacts, declared: DeclaredTensor | None, batched: bool) -> Face:
    """Return an input with the declared type and shape."""
    shape = facts.spec.shape
    if declared is None or declared.reshape is None:
        return Face(facts.spec.name, shape, shape)
    return Face(facts.spec.name, declared.shape(batched=batched), shape)


def _given_face(
    facts: _TensorFacts, declared: DeclaredTensor | None, batched: bool
) -> Face:
    """Return an output. Raises ValueError if it cannot be as declared."""
    name, shape = facts.spec.name, facts.spec.shape
    if declared is None:
        return Face(name, shape, shape)
    _check_type(declared, facts.spec, facts.where)
    inner = _inner_shape(declared, batched)
    if inner is None:
        return Face(name, shape, shape)
    try:
        inner = fitting(inner, batched, shape, facts.batched)
    except ValueError:
        msg = (
            f"{declared.label}: output '{name}' is declared with shape "
            f"{_shown(_inner_shape(declared, batched))}, but {facts.where} has "
            f"{_shown(shape)}"
        )
        raise ValueError(msg) from None
    outer = inner
    if declared.reshape is not None:
        outer = declared.shape(batched=batched)
    return Face(name, outer, inner)


def _inner_shape(declared: DeclaredTensor, batched: bool) -> tuple[int, ...] | None:
    """Return the shape that the model sees; None if no dimensions are declared."""
    if declared.reshape is None:
        return declared.shape(batched=batched)
    return (-1, *declared.reshape) if batched else declared.reshape


def _check_type(declared: DeclaredTensor, spec: TensorSpec, where: str) -> None:
    if declared.datatype and declared.datatype != spec.datatype:
        msg = (
            f"{declared.label}: '{declared.name}' is declared as {declared.datatype}, "
            f"but {where} is {spec.datatype}"
        )
        raise ValueError(msg)


def _step(
    label: str, config: StepConfig, spec: ModelSpec, ensemble: EnsembleConfig
) -> Step:
    for kind, given, known in (
        ("input", config.inputs, spec.inputs_by_name),
        ("output", config.outputs, spec.outputs_by_name),
    ):
        for name in given:
            if name not in known:
                msg = f"{label}: the model has no {kind} {name!r}; it has {list(known)}"
                raise ValueError(msg)
    inputs = tuple(
        (n, config.inputs.get(n, n))
        for n in spec.inputs_by_name
        # Inputs that may be omitted are omitted, unless the configuration names them.
        if n not in spec.defaults or n in config.inputs or n in ensemble.inputs
    )
    outputs = tuple(config.outputs.items()) or tuple(
        (n, n) for n in spec.outputs_by_name
    )
    return Step(label, config.model, config.version, inputs, outputs)


def _producers(steps: Sequence[Step]) -> dict[str, int]:
    """Return the step that produces each tensor."""
    producers: dict[str, int] = {}
    for number, step in enumerate(steps):
        for _, tensor in step.outputs:
            if tensor in producers:
                other = steps[producers[tensor]].label
                msg = f"tensor {tensor!r} has two sources: {other} and {step.label}"
                raise ValueError(msg)
            producers[tensor] = number
    return producers


def _tensors(
    steps: Sequence[Step],
    members: Sequence[ModelSpec],
    producers: dict[str, int],
    declared: DeclaredTensors,
) -> dict[str, _TensorFacts]:
    """Return every tensor with its known type and shape."""
    found: dict[str, _TensorFacts] = {}
    for step, member in zip(steps, members, strict=True):
        for own, tensor in step.outputs:
            spec = replace(member.outputs_by_name[own], name=tensor)
            where = f"output {own!r} of {step.label}"
            found[tensor] = _TensorFacts(where, spec, member.is_batched)
    for step, member in zip(steps, members, strict=True):
        for own, tensor in step.inputs:
            where = f"input {own!r} of {step.label}"
            spec = replace(member.inputs_by_name[own], name=tensor)
            taken = _TensorFacts(where, spec, member.is_batched)
            if tensor not in found:
                first = _from_outside(taken, declared)
                if first is None:
                    found[tensor] = taken
                    continue
                found[tensor] = first
            known = found[tensor]
            shape = _joined(tensor, known, taken)
            # A tensor that a step produces has the shape that the step states.
            if tensor not in producers:
                found[tensor] = replace(known, spec=replace(known.spec, shape=shape))
    return found


def _from_outside(
    taken: _TensorFacts, declared: DeclaredTensors
) -> _TensorFacts | None:
    """Return an input of the ensemble as declared; None if it is not declared."""
    said = declared.input(taken.spec.name)
    if said is None:
        return None
    shape = _inner_shape(said, declared.is_batched)
    if shape is None:
        return None
    _check_type(said, taken.spec, taken.where)
    spec = replace(taken.spec, shape=shape, multiple=1)
    where = f"the input that {declared.label} declares"
    return _TensorFacts(where, spec, declared.is_batched)


def _joined(
    tensor: str, known: _TensorFacts, taken: _TensorFacts
) -> tuple[int, ...] | None:
    """Return the shape that suits both the producer and the consumer of a tensor.

    Raises ValueError if there is none.
    """
    if known.spec.datatype != taken.spec.datatype:
        msg = (
            f"tensor {tensor!r}: {known.where} is {known.spec.datatype}, but "
            f"{taken.where} is {taken.spec.datatype}"
        )
        raise ValueError(msg)
    mine, theirs = known.spec.shape, taken.spec.shape
    try:
        return fitting(mine, known.batched, theirs, taken.batched)
    except ValueError:
        msg = (
            f"tensor {tensor!r}: {known.where} has shape {_shown(mine)}, but "
            f"{taken.where} expects {_shown(theirs)}"
        )
        raise ValueError(msg) from None


def fitting(
    mine: tuple[int, ...] | None,
    batched: bool,
    theirs: tuple[int, ...] | None,
    others_batched: bool,
) -> tuple[int, ...] | None:
    """Return the shape `mine` completed by `theirs`.

    The ranks may differ by one if only one of them counts rows. Raises ValueError.
    """
    if mine is not None and theirs is not None and batched != others_batched:
        if others_batched and len(theirs) == len(mine) + 1:
            return common_shape(mine, theirs[1:])
        if batched and len(mine) == len(theirs) + 1:
            common = common_shape(mine[1:], theirs)
            return (mine[0], *(common or ()))
    return common_shape(mine, theirs)


def _shown(shape: tuple[int, ...] | None) -> str:
    return "of any rank" if shape is None else str(list(shape))


def _check_inputs(
    config: EnsembleConfig, steps: Sequence[Step], inputs: Sequence[str]
) -> None:
    if not inputs:
        raise ValueError(
            "every step takes a tensor of another step, so the ensemble has no input"
        )
    if config.inputs and set(config.inputs) != set(inputs):
        unknown = [name for name in inputs if name not in config.inputs]
        if unknown:
            taker = _first(steps, lambda step: unknown[0] in dict(step.inputs).values())
            msg = (
                f"{taker.label} takes {unknown[0]!r}, which neither a step produces "
                f"nor the inputs {list(config.inputs)} include"
            )
            raise ValueError(msg)
        unused = [name for name in config.inputs if name not in inputs]
        raise ValueError(f"no step takes the declared input {unused[0]!r}")


def _outputs(
    config: EnsembleConfig, steps: Sequence[Step], producers: dict[str, int]
) -> Sequence[str]:
    taken = {tensor for step in steps for _, tensor in step.inputs}
    for name in config.outputs:
        if name not in producers:
            msg = (
                f"no step produces the output {name!r}; the steps produce "
                f"{list(producers)}"
            )
            raise ValueError(msg)
    outputs = config.outputs or [name for name in producers if name not in taken]
    if not outputs:
        raise ValueError(
            "a step takes every tensor, so the ensemble has no output: name the outputs"
        )
    return outputs


def _linked(steps: Sequence[Step], producers: dict[str, int]) -> tuple[Step, ...]:
    """Return the linked steps. Raises ValueError if they form a circle."""
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
        raise ValueError(f"the steps form a circle: {labels}")
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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The steps that lead to some `outputs`, by number, with the outputs each must
    return.

    Other steps do not run.
    """

    outputs: frozenset[str]
    asked: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, steps: Sequence[Step], outputs: Iterable[str]) -> StepPlan:
        producers = {
            tensor: number
            for number, step in enumerate(steps)
            for _, tensor in step.outputs
        }
        wanted: set[str] = set()
        needed: set[int] = set()
        left = list(outputs)
        while left:
            tensor = left.pop()
            wanted.add(tensor)
            number = producers.get(tensor)
            if number is not None and number not in needed:
                needed.add(number)
                left += [name for _, name in steps[number].inputs]
        return cls(
            frozenset(outputs),
            {
                number: tuple(own for own, t in steps[number].outputs if t in wanted)
                for number in sorted(needed)
            },
        )
