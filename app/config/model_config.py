"""``config.toml`` of a model: how to run it. Every key is optional.

An unknown key, a wrong type or a value out of range is an error that names the key. So
a misspelt key is never ignored. `docs/reference/configuration.md` lists them.
`app/config/config_keys.py` says how to declare keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import orjson
from pydantic import Strict

from app.config.config_keys import (
    DISTINCT,
    KeyProblem,
    ModelConfigError,
    between,
    checked,
    default_of,
    entries,
    key,
    read_section,
    section,
    text,
)
from app.config.ensemble_config import EnsembleConfig
from app.config.priorities import PriorityLevel, check_levels, timeouts
from app.config.ragged_config import RaggedConfig
from app.config.stateful_config import SequenceConfig, StepsConfig
from app.config.version_policy import ALL_VERSIONS, VersionPolicy, check_versions
from app.config.warmup_config import WarmupConfig
from app.plugins import with_sections
from app.sizes import counted, parse_size, size_text
from engine import MAX_PRIORITY_LEVELS, ModelRunnerConfig, is_requirement

# The keys that apply to a model that runs nothing itself.
ENSEMBLE_KEYS = frozenset(
    {"ensemble", "example", "labels", "max_request_rows", "max_timeout", "timeout"}
    | {"versions"}
)
# The keys that apply to models in Python only.
PYTHON_KEYS = frozenset(
    {"environment", "memory_limit", "models", "parameters", "python", "requirements"}
    | {"start_timeout", "working_folder"}
)
MAX_INSTANCES = 1024
MAX_DEVICES = 1 << 16
MAX_BATCHING_DIM = 26
MAX_LABELLED_OUTPUTS = 1000


def _auto_or_bool(value: Any) -> bool | None:
    if value == "auto":
        return None
    if isinstance(value, bool):
        return value
    raise ValueError('"auto", true or false')


def _optional_inputs(value: Any) -> bool | tuple[str, ...] | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    try:
        return _auto_or_bool(value)
    except ValueError:
        raise ValueError('"auto", true, false or a list of inputs') from None


def _batching_dim(value: Any) -> int | None:
    if value == "auto":
        return None
    if type(value) is int and 0 <= value <= MAX_BATCHING_DIM:
        return value
    raise ValueError('"auto" or the number of a dimension')


def _example(value: Any) -> Mapping[str, Any]:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as e:
        raise ValueError(f"a table of values that JSON can hold ({e})") from None
    if not isinstance(value, dict):
        raise ValueError("a table")
    return value


def _devices(value: Any) -> tuple[int, ...]:
    found = value if isinstance(value, list) else []
    if any(type(n) is not int or not 0 <= n < MAX_DEVICES for n in found):
        found = []
    if not 0 < len(found) == len(set(found)) <= MAX_INSTANCES:
        wanted = "a list of different indices of attached devices, as in [0, 1]"
        raise ValueError(wanted)
    return tuple(found)


def _parameters(value: Any) -> Mapping[str, Any]:
    """Return the value in JSON's types: a date becomes a string."""
    try:
        found = orjson.loads(orjson.dumps(value))
    except (orjson.JSONEncodeError, orjson.JSONDecodeError) as e:
        raise ValueError(f"a table of values that JSON can hold ({e})") from None
    if not isinstance(found, dict):
        raise ValueError("a table")
    return found


def _sections(value: Any) -> Mapping[str, Any]:
    """Return the sections of plugins as their own classes. Raises `KeyProblem`."""
    known = with_sections()
    if not isinstance(value, dict) or not value.keys() <= known.keys():
        raise ValueError("a table of sections for plugins")
    found = {}
    for name, written in value.items():
        if not isinstance(written, dict):
            raise KeyProblem(f"{name} must be a table, got {written!r:.100}")
        try:
            found[name] = read_section(known[name].section, written)
        except KeyProblem as e:
            raise KeyProblem(f"[{name}] {e}") from None
    return found


def size(low: int, high: int) -> Any:
    """Return bytes, as a number or as in ``"256MiB"``."""
    bounds = " to ".join(size_text(bound).replace(" ", "") for bound in (low, high))
    wanted = f'a size in bytes or as in "256MiB", from {bounds}'

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(wanted)
        try:
            found = parse_size(value)
        except ValueError:
            raise ValueError(wanted) from None
        if not low <= found <= high:
            raise ValueError(wanted)
        return found

    return checked(check)


def _labels(value: Any) -> dict[str, str | tuple[str, ...]]:
    """Return a table of output name to a file name, or to the labels themselves."""
    wanted = "a table of output name to the name of a file, or a list of labels"
    if not isinstance(value, dict) or len(value) > MAX_LABELLED_OUTPUTS:
        raise ValueError(wanted)
    found: dict[str, str | tuple[str, ...]] = {}
    for name, labels in value.items():
        if isinstance(labels, str):
            found[name] = labels
        elif isinstance(labels, list) and all(isinstance(x, str) for x in labels):
            found[name] = tuple(labels)
        else:
            raise ValueError(wanted)
    return found


def _frozen_inputs(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError('a table of input name to value or "FILE.npy"')
    for name, item in value.items():
        if isinstance(item, str) and not item.endswith(".npy"):
            raise ValueError(f'a value or "FILE.npy" for {name!r}')
        if not isinstance(item, bool | int | float | str | list):
            raise ValueError(f"a number or lists of numbers for {name!r}")
    return value


def _environment(value: Any) -> Mapping[str, str]:
    wanted = "a table of variable names and strings"
    if not isinstance(value, dict):
        raise ValueError(wanted)
    for name, content in value.items():
        if not isinstance(content, str) or "\0" in name + content:
            raise ValueError(wanted)
        if not name or "=" in name:
            raise ValueError(wanted)
    return value


def _models(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError('a list of models, as in ["classifier"]')
    return tuple(value)


def _requirements(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError('a list of packages, as in ["numpy>=2"]')
    if not all(map(is_requirement, value)):
        msg = 'names of packages with versions, as in ["numpy", "numpy>=2,<3"]'
        raise ValueError(msg)
    return tuple(value)


@section
@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The options of one model, as written or by default.

    If `batching`, `batching_dim` or `optional_inputs` is None, the compiler's findings
    in the file decide. If `max_batch_size` is 0, the model decides. If `memory` is
    None, the size of its files counts. If `timeout` is None, the server's applies.
    Times are seconds, sizes bytes.
    """

    source: Annotated[str, text(4000)] = key(
        "", "the URL of the model's files; the folder must then contain only this file"
    )
    executable: Annotated[str, text(4000)] = key(
        "", "name of the model in a file that holds several"
    )
    instances: Annotated[int, between(1, MAX_INSTANCES)] = key(
        1, "number of replicas, spread over the attached devices or those in `devices`"
    )
    devices: Annotated[tuple[int, ...], checked(_devices)] = key(
        (), "indices of the attached devices, one for each instance in turn"
    )
    batching: Annotated[bool | None, checked(_auto_or_bool)] = key(
        None, "whether the device runs rows of different requests together"
    )
    batching_dim: Annotated[int | None, checked(_batching_dim)] = key(
        None, "the dimension whose size each request chooses"
    )
    optional_inputs: Annotated[
        bool | tuple[str, ...] | None, checked(_optional_inputs)
    ] = key(None, "whether requests may omit inputs, or the inputs that they may omit")
    max_batch_size: Annotated[int, between(0, 65536)] = key(0, "most rows in a batch")
    max_request_rows: Annotated[int, between(0, 1 << 31)] = key(
        0, "most rows in a request; larger requests are refused"
    )
    preferred_batch_sizes: Annotated[
        tuple[Annotated[int, between(1, 65536)], ...], entries(1000, 1), DISTINCT
    ] = key((), "preferred rows of a batch")
    max_queue_delay: Annotated[float, between(0, 60)] = key(
        0.0, "how long a free device waits for more rows"
    )
    max_queue_size: Annotated[int, between(1, 65536)] = key(
        1024, "most requests that one instance holds"
    )
    priority_levels: Annotated[int, between(0, MAX_PRIORITY_LEVELS)] = key(
        0, "number of priority levels, 1 is the highest; 0: none"
    )
    default_priority: Annotated[int, between(1, MAX_PRIORITY_LEVELS)] = key(
        0, "the level of requests that state none"
    )
    priority: Annotated[tuple[PriorityLevel, ...], entries(100)] = key(
        (), "options of a single level"
    )
    channel_memory: Annotated[int, size(1 << 16, 1 << 38)] | None = key(
        None, "shared memory of one instance in each direction"
    )
    memory: Annotated[int, size(1, 1 << 50)] | None = key(
        None, "memory of the loaded model, as counted for --model-memory"
    )
    timeout: Annotated[float, between(0.001, 86400)] | None = key(
        None, "timeout of requests that state none"
    )
    max_timeout: Annotated[float, between(0.001, 86400)] | None = key(
        None, "longest time that a request may take, even if it states a longer timeout"
    )
    check_package_hash: Annotated[bool, Strict()] = key(
        True, "compare the graphs with the digests in the file at load"
    )
    frozen_inputs: Annotated[Mapping[str, Any], checked(_frozen_inputs)] = key(
        dict, "fixed values of inputs, which requests then omit"
    )
    save_outputs: Annotated[str, text(4000)] = key(
        "", "folder in which the model's save programs write their data"
    )
    python: Annotated[str, text(4000)] = key(
        "", "the Python interpreter of a Python model; empty: the server's"
    )
    requirements: Annotated[tuple[str, ...], checked(_requirements)] = key(
        (),
        "packages that a Python model needs; PopGate checks but does not install them",
    )
    models: Annotated[
        tuple[Annotated[str, text(255)], ...] | None, checked(_models)
    ] = key(None, "the models that a Python model may call; empty: any")
    parameters: Annotated[Mapping[str, Any], checked(_parameters)] = key(
        dict, "the value of `context.config` in a Python model"
    )
    environment: Annotated[Mapping[str, str], checked(_environment)] = key(
        dict, "environment variables of a Python model"
    )
    working_folder: Annotated[str, text(4000)] = key(
        "", "working folder of a Python model; empty: the folder of its version"
    )
    memory_limit: Annotated[int | None, size(1 << 26, 1 << 50)] = key(
        None, "memory limit of the process of a Python model"
    )
    start_timeout: Annotated[float, between(0.001, 86400)] = key(
        60.0, "time limit for starting the process of a Python model"
    )
    versions: Annotated[VersionPolicy, checked(check_versions)] = key(
        ALL_VERSIONS, "the versions to serve"
    )
    labels: Annotated[Mapping[str, Any], checked(_labels)] = key(
        dict, "class names of an output, or the file that lists them"
    )
    sequence: SequenceConfig | None = key(
        None, "settings for a model whose requests form sequences with a state"
    )
    responses: StepsConfig | None = key(
        None, "settings for a model that runs in steps and returns several responses"
    )
    ragged: RaggedConfig | None = key(
        None, "settings for running rows of different lengths together"
    )
    warmup: WarmupConfig | None = key(
        None, "runs of each replica before the model accepts requests"
    )
    ensemble: EnsembleConfig | None = key(
        None, "the other models that this ensemble runs, as a graph"
    )
    sections: Annotated[Mapping[str, Any], checked(_sections)] = key(
        dict, "sections that plugins read, each under its own name"
    )
    example: Annotated[Mapping[str, Any], checked(_example)] = key(
        dict, "example values of inputs by name, for the documentation page"
    )

    def __post_init__(self) -> None:
        if self.ensemble is not None:
            self._check_ensemble()
        if self.devices and len(self.devices) > self.instances:
            msg = (
                f"devices names {counted(len(self.devices), 'device')} for "
                f"{counted(self.instances, 'instance')}; name one device for each "
                "instance"
            )
            raise ValueError(msg)
        most = self.max_batch_size
        too_large = [n for n in self.preferred_batch_sizes if most and n > most]
        if too_large:
            msg = (
                f"preferred_batch_sizes has {too_large[0]}, which exceeds "
                "max_batch_size"
            )
            raise ValueError(f"{msg} ({most})")
        if self.default_priority > self.priority_levels:
            msg = (
                f"default_priority is {self.default_priority}, but priority_levels is "
                f"{self.priority_levels}"
            )
            raise ValueError(msg)
        if self.ragged is not None and self.preferred_batch_sizes:
            raise ValueError(
                "[ragged] and preferred_batch_sizes exclude each other; remove one"
            )
        for name in ("sequence", "responses"):
            if self.ragged is not None and getattr(self, name) is not None:
                msg = f"[ragged] and [{name}] exclude each other; remove one"
                raise ValueError(msg)
        if self.sequence is not None and self.responses is not None:
            raise ValueError(
                "[sequence] and [responses] exclude each other; remove one"
            )
        check_levels(self.priority, self.priority_levels, self.max_timeout)
        if self.timeout and self.max_timeout and self.timeout > self.max_timeout:
            msg = f"timeout is {self.timeout:g} s, which exceeds max_timeout"
            raise ValueError(f"{msg} ({self.max_timeout:g} s)")

    def timeout_of(self, asked: float | None, priority: int, default: float) -> float:
        """Return the timeout in seconds of a request of a priority level.

        `asked` is the request's own timeout, or None. `default` applies if neither the
        request nor the model has one.
        """
        wanted = asked
        if wanted is None:
            options = ModelRunnerConfig(
                priority_levels=self.priority_levels,
                default_priority=self.default_priority,
            )
            levels = timeouts(options, self.priority)
            own = levels.get(priority, levels.get(0))
            wanted = own or self.timeout or default
        stated = (default, self.timeout, *(level.timeout for level in self.priority))
        longest = self.max_timeout or max(seconds or 0.0 for seconds in stated)
        return min(wanted, longest)

    def _check_ensemble(self) -> None:
        for item in fields(self):
            given = getattr(self, item.name)
            if item.name not in ENSEMBLE_KEYS and given != default_of(item):
                msg = f"an ensemble cannot have {item.name}; set it for the member"
                raise ValueError(f"{msg} steps")


def python_keys_set(config: ModelConfig) -> list[str]:
    """Return the keys for models in Python that `config` has."""
    found = (f for f in fields(config) if f.name in PYTHON_KEYS)
    return [f.name for f in found if getattr(config, f.name) != default_of(f)]


def parse_model_config(
    document: Mapping[str, Any], name: str = "config.toml"
) -> ModelConfig:
    """Return the `ModelConfig` of a parsed document. Raises `ModelConfigError`."""
    if not document:
        return ModelConfig()  # without the validator, which takes 40 ms to build
    others = document.keys() - ModelConfig.__dataclass_fields__.keys()
    theirs = others & with_sections().keys() if others else others
    if theirs:
        plain = {name: v for name, v in document.items() if name not in theirs}
        document = {**plain, "sections": {name: document[name] for name in theirs}}
    try:
        return read_section(ModelConfig, document)
    except KeyProblem as e:
        raise ModelConfigError(f"{name}: {e}") from None
