"""Options and reports of a compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from engine.errors import InvalidConfig, counted
from engine.model.batch_plan import MAX_BATCH
from popef_io import DataType, TensorInfo

Progress: TypeAlias = Callable[[str, float], None]
"""Called with the name of a stage and the finished part of all work, 0 to 1."""
Dims: TypeAlias = tuple[int | str, ...]
"""Dimensions of a shape override: numbers, names of free dimensions, or -1 (free)."""

MAX_THREADS = 1024
"""Limit of the check's threads: more than the cores of any machine, and few enough to
start.
"""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of a compilation. `repr` is complete and stable: it may be part of a
    cache key.
    """

    batch: Literal["auto", "off"] | int = "auto"
    """Whether rows of different requests may share a batch. `auto`: if the check
    shows that they may. `off`: never. A number fixes the first dimension at that many
    rows, which are mixed if the check shows that they may."""
    weights: Literal["data", "inside"] = "data"
    """Where large initializers go: tensor data of the container, or the executable."""
    weights_from: int = 1024
    """Bytes from which an initializer is large."""
    name: str = ""
    """Name of the executable; empty: the name of the source file, or `model`."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """New names of inputs, by their names in the source."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """New names of outputs."""
    shapes: Mapping[str, Dims] = field(default_factory=dict)
    """New shapes of inputs or outputs, by their names in the source."""
    ragged: Mapping[str, float] = field(default_factory=dict)
    """Padding values of the inputs whose second axis is a length that padding does not
    change, by their names outside."""
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    """Kept in the container under `user.<key>`."""
    description: str = ""
    """Description for people; empty: the description in the source."""
    threads: int = 1
    """Threads of the check."""
    seed: int = 0
    """Of the data that the check makes up."""
    check_seconds: float = 5.0
    """Approximate time limit of the check, after which it uses fewer trials."""
    check_limit: float = 30.0
    """Seconds after which the runs of the check are ended and rows are not mixed."""

    def to_message(self) -> dict[str, Any]:
        """Return the report as a value for JSON."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> CompileOptions:
        """Make the object from a message of `to_message`."""
        shapes = {name: tuple(dims) for name, dims in message["shapes"].items()}
        return cls(**{**message, "shapes": shapes})

    def __post_init__(self) -> None:
        batch = self.batch
        if isinstance(batch, bool) or not (
            batch in ("auto", "off")
            or (isinstance(batch, int) and 1 <= batch <= MAX_BATCH)
        ):
            raise InvalidConfig(
                f"batch must be auto, off or a number from 1 to {MAX_BATCH}, got "
                f"{batch!r}"
            )
        if self.weights not in ("data", "inside"):
            raise InvalidConfig(f"weights must be data or inside, got {self.weights!r}")
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidConfig(
                f"threads must be from 1 to {MAX_THREADS}, got {self.threads}"
            )


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output of the compiled model."""

    name: str
    info: TensorInfo

    def __str__(self) -> str:
        return f"{self.name}: {self.info}"


COULD_NOT_RUN = "it could not be run on synthetic rows"


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """Decision whether rows of different requests may be mixed, and the reason."""

    rows: bool
    size: int
    """Rows of every run; 0: as many as there are."""
    reason: str
    """A clause without its full stop."""
    most: int = 0
    """Most rows of a batch that fit into memory, if that is less than the default
    (0: the default).
    """

    @property
    def could_not_run(self) -> bool:
        """Return whether the model failed on all synthetic rows."""
        return self.reason.startswith(COULD_NOT_RUN)

    def __str__(self) -> str:
        return f"batching: {'on' if self.rows else 'off'}, {self.reason}"


@dataclass(frozen=True, slots=True)
class CompileReport:
    """Result of a compilation."""

    target: Path
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    batch: BatchDecision
    weight_count: int
    """Initializers that became tensor data."""
    weight_bytes: int
    file_bytes: int

    def to_message(self) -> dict[str, Any]:
        """Return the decision as a value for JSON."""
        message = asdict(self)
        message["target"] = str(self.target)
        for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            message[kind] = [
                [t.name, t.info.shape, t.info.data_type.name] for t in tensors
            ]
        return message

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> CompileReport:
        """Make the object from a message of `to_message`."""

        def tensors(kind: str) -> tuple[TensorReport, ...]:
            return tuple(
                TensorReport(
                    str(name),
                    TensorInfo(
                        None if shape is None else tuple(map(int, shape)),
                        DataType[data_type],
                    ),
                )
                for name, shape, data_type in message[kind]
            )

        return cls(
            Path(message["target"]),
            tensors("inputs"),
            tensors("outputs"),
            BatchDecision(**message["batch"]),
            int(message["weight_count"]),
            int(message["weight_bytes"]),
            int(message["file_bytes"]),
        )

    def __str__(self) -> str:
        return (
            f"{self.target}: {counted(len(self.inputs), 'input')}, "
            f"{counted(len(self.outputs), 'output')}, {self.file_bytes} bytes; "
            f"{self.batch}"
        )
