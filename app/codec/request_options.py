"""Options of a request: its parameters, the outputs that it wants, the form of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.codec.messages import InferRequest, nan_policy
from app.codec.shapes import check_depth, shown
from app.errors import HttpError, InvalidRequest
from app.limits import Limits
from app.regions import Extent
from app.spec import ModelSpec, TensorSpec

_MOST_BYTES = (1 << 64) - 1
_US_PER_S = 1e6
_UNSORTED = ("b", "s")  # kinds of datatypes whose values are not ranked


def read_parameters(request: InferRequest, parameters: object, limits: Limits) -> None:
    """Apply the parameters of a document. Raises InvalidRequest."""
    if type(parameters) is not dict:
        msg = f"'parameters' must be an object, got {shown(parameters)}"
        raise InvalidRequest(msg)
    for key, value in parameters.items():
        if isinstance(value, dict | list):
            check_depth(parameters, limits, 1)
        _check_parameter(key, value)
    request.parameters = parameters
    binary = parameters.get("binary_data_output")
    if binary is not None:
        request.binary = boolean("binary_data_output", binary)
    timeout = parameters.get("timeout")
    if timeout is not None:
        if type(timeout) is not int or timeout < 0:
            msg = f"'timeout' must be an integer, in microseconds, got {shown(timeout)}"
            raise InvalidRequest(msg)
        # 0 is no timeout.
        request.timeout = min(timeout, 1 << 62) / _US_PER_S or None
    priority = parameters.get("priority")
    if priority is not None:
        if type(priority) is not int or priority < 0:
            msg = f"'priority' must be an integer, 1 or more, got {shown(priority)}"
            raise InvalidRequest(msg)
        request.priority = priority
    if "nan" in parameters:
        request.nan = nan_policy(parameters["nan"])
    missing = parameters.get("missing")
    if missing is not None:
        if missing not in ("nan", "refuse"):
            msg = f"'missing' must be one of 'nan', 'refuse', got {shown(missing)}"
            raise InvalidRequest(msg)
        request.null_is_nan = missing == "nan"


def _check_parameter(key: object, value: object) -> None:
    """Refuse request parameters that the protocol does not allow."""
    if type(key) is not str:
        msg = f"the name of a parameter must be a string, got {shown(key)}"
        raise InvalidRequest(msg)
    if key.startswith("triton_"):
        msg = (
            "parameter keys starting with 'triton_' are reserved for Triton usage and "
            f"should not be specified, got '{key:.80}'"
        )
        raise InvalidRequest(msg)
    if value is not None and not isinstance(value, str | int | float):
        msg = (
            f"parameter '{key:.80}' has invalid type. It should be either 'int', "
            f"'bool', 'double' or 'string', got {shown(value)}"
        )
        raise InvalidRequest(msg)


def read_outputs(
    request: InferRequest, items: object, spec: ModelSpec, limits: Limits
) -> None:
    """Read `outputs` of a document into `request`. Raises InvalidRequest."""
    if type(items) is not list:
        raise InvalidRequest(f"'outputs' must be a list, got {shown(items)}")
    if not items:
        return
    if len(items) > limits.max_inputs:
        msg = (
            f"'outputs' has {len(items)} entries; "
            f"at most {limits.max_inputs} are allowed"
        )
        raise InvalidRequest(msg)
    names: list[str] = []
    for item in items:
        is_object = type(item) is dict
        name = item.get("name") if is_object else item
        is_name = isinstance(name, str)
        output = spec.outputs_by_name.get(name) if is_name else None
        if output is None:
            given = f"'{name:.200}'" if is_name else shown(name)
            msg = (
                f"unexpected inference output {given} for model "
                f"'{spec.name}'. Expected some of {quoted(spec.outputs_by_name)}."
            )
            raise InvalidRequest(msg)
        if name in names:
            raise InvalidRequest(f"output '{name}' already exists in request")
        names.append(name)
        if is_object and item.get("parameters") is not None:
            _read_output_parameters(request, output, item["parameters"])
    request.outputs = tuple(names)


def _read_output_parameters(
    request: InferRequest, output: TensorSpec, parameters: Any
) -> None:
    name = output.name
    if type(parameters) is not dict:
        msg = f"'parameters' of output '{name}' must be an object"
        raise InvalidRequest(f"{msg}, got {shown(parameters)}")
    binary = parameters.get("binary_data")
    if binary is not None:
        by_name = request.binary_by_name
        request.binary_by_name = {
            **(by_name or {}),
            name: boolean("binary_data", binary),
        }
    classes = parameters.get("classification")
    if parameters.get("shared_memory_region") is not None:
        if binary or classes:
            other = "binary_data" if binary else "classification"
            msg = (
                f"output '{name}' cannot set both 'shared_memory_region' and '{other}'"
            )
            raise InvalidRequest(msg)
        extent = extent_of(f"output '{name}'", parameters)
        request.extents = {**(request.extents or {}), name: extent}
    if classes is not None:
        _read_classes(request, output, classes)


def _read_classes(request: InferRequest, output: TensorSpec, count: object) -> None:
    """Read how many of the highest values are wanted instead of all."""
    if type(count) is not int or count < 0:
        msg = (
            f"'classification' of output '{output.name}' must be a number of classes, "
            f"got {shown(count)}"
        )
        raise InvalidRequest(msg)
    if not count:
        return
    if output.type.kind in _UNSORTED:
        msg = (
            "class result not available for output due to unsupported type "
            f"'{output.datatype}' (output '{output.name}')"
        )
        raise InvalidRequest(msg)
    request.classes = {**(request.classes or {}), output.name: count}


def extent_of(what: str, parameters: dict[str, Any]) -> Extent:
    """Return the place in shared memory that parameters name. Raises InvalidRequest."""
    region = parameters["shared_memory_region"]
    if type(region) is not str:
        msg = f"'shared_memory_region' of {what} must be a string, got {shown(region)}"
        raise InvalidRequest(msg)
    numbers = []
    for key, value in (
        ("shared_memory_offset", parameters.get("shared_memory_offset", 0)),
        ("shared_memory_byte_size", parameters.get("shared_memory_byte_size")),
    ):
        if type(value) is not int or value < 0:
            msg = (
                f"'{key}' of {what} must be a number of bytes beside "
                f"'shared_memory_region', got {shown(value)}"
            )
            raise InvalidRequest(msg)
        numbers.append(value)
    offset, size = numbers
    if offset + size > _MOST_BYTES:
        msg = (
            f"Integer overflow detected: byte_size ({size}) + offset ({offset}) of "
            f"{what} is more than {_MOST_BYTES}"
        )
        raise InvalidRequest(msg)
    return Extent(region, offset, size)


def not_allowed() -> HttpError:
    """Return the error for a request that names shared memory while that is not
    allowed.
    """
    msg = (
        "Client shared memory is disabled; start the server with --allow-shared-memory"
    )
    return HttpError(501, msg, "unsupported")


def quoted(names: Iterable[str]) -> str:
    """Return names as Triton's error messages list them: ``['A','B']``."""
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def boolean(name: str, value: object) -> bool:
    """Return `value`, which must be a boolean; raises InvalidRequest."""
    if type(value) is not bool:
        raise InvalidRequest(f"'{name}' must be true or false, got {shown(value)}")
    return value
