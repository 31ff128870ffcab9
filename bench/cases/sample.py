"""A small choice of conformance cases that misses no datatype and no odd shape."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from bench.cases.backend import Case, graph_inputs


def _arrays(case: Case) -> Iterator[np.ndarray]:
    for data_set in case.data_sets:
        yield from data_set.inputs.values()
        yield from data_set.outputs.values()


def _has_empty(case: Case) -> bool:
    return any(array.size == 0 for array in _arrays(case))


def _has_scalar(case: Case) -> bool:
    return any(array.ndim == 0 for array in _arrays(case))


def _has_dynamic_shape(case: Case) -> bool:
    values = (*graph_inputs(case.model.graph), *case.model.graph.output)
    return any(
        not value.type.tensor_type.HasField("shape")
        or any(not d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
        for value in values
    )


def _has_no_input(case: Case) -> bool:
    return not graph_inputs(case.model.graph)


def _has_nan(case: Case) -> bool:
    return any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in _arrays(case))


def _has_weights(case: Case) -> bool:
    return bool(case.model.graph.initializer)


def _has_several_outputs(case: Case) -> bool:
    return len(case.model.graph.output) > 1


#: Shapes and values that have broken servers before, three cases of each.
ODD: Mapping[str, Callable[[Case], bool]] = {
    "empty": _has_empty,
    "scalar": _has_scalar,
    "dynamic": _has_dynamic_shape,
    "no input": _has_no_input,
    "not finite": _has_nan,
    "weights": _has_weights,
    "several outputs": _has_several_outputs,
}
OF_EACH_ODD = 3


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """Return about `count` cases: odd ones, then each set of datatypes in turn.

    A digest of the names decides, so every run has the same choice.
    """
    ordered = sorted(cases, key=lambda c: hashlib.sha256(c.name.encode()).digest())
    chosen: dict[str, Case] = {}
    for is_odd in ODD.values():
        odd = [case for case in ordered if is_odd(case)]
        chosen |= {case.name: case for case in odd[:OF_EACH_ODD]}
    groups: dict[frozenset[str], list[Case]] = defaultdict(list)
    for case in ordered:
        groups[case.datatypes].append(case)
    for case in _in_turn(list(groups.values())):
        if len(chosen) >= count:
            break
        chosen.setdefault(case.name, case)
    return list(chosen.values())


def _in_turn(groups: Sequence[Sequence[Case]]) -> Iterator[Case]:
    for number in range(max(map(len, groups), default=0)):
        for group in groups:
            if number < len(group):
                yield group[number]
