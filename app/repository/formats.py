"""Model formats: kinds of model folders that plugins provide.

A format recognises its folder, changes the ONNX file in it before compiling, and
provides the scheduler between requests and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from app.codec.messages import InferRequest
from app.plugins import INPUT_DECODERS, MODEL_FORMATS, plugins
from app.serving.runner import Runner, Submitted
from app.spec import ModelSpec
from engine import Tensor


class FormatRunner(Runner, Protocol):
    """The runner of a model of a format."""

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
        optional: bool = False,
    ) -> Submitted:
        """Run a request, with its `optional_outputs` if `optional`."""


class FormatScheduler(Protocol):
    """Scheduler of requests to a model of a format. For the event loop's thread."""

    @property
    def visible(self) -> ModelSpec:
        """Return the tensors that requests see."""

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted:
        """Run a request; `on_done` is called once, whatever the outcome.

        Raises errors of requests and of the engine.
        """


@dataclass(frozen=True, slots=True)
class SharedFormat:
    """The description from which another process makes a scheduler.

    `format` is the name of the format's entry point, `spec` has the tensors of the
    converted model. The format chooses the content of `description`, within the types
    of msgpack.
    """

    format: str
    spec: ModelSpec
    description: Mapping[str, Any]

    def to_message(self) -> list[object]:
        return [self.format, self.spec.to_message(), dict(self.description)]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> SharedFormat:
        name, spec, description = msgspec.convert(
            message, tuple[str, list[Any], dict[str, Any]]
        )
        return cls(name, ModelSpec.from_message(spec), description)


@runtime_checkable
class SharedScheduler(Protocol):
    """A `FormatScheduler` whose model HTTP workers may run, each with its own
    scheduler.

    Its format has a method `join(spec, runner, description)`, which returns such a
    scheduler or raises ValueError or OSError.
    """

    @property
    def shared(self) -> SharedFormat:
        """Return the description for the schedulers of workers."""


class ModelFormat(Protocol):
    """One kind of model folder; its name is that of its entry point. For all threads.

    `section` is the class of its section in ``config.toml``, which is named like the
    format. All of its keys have defaults (`app.config.config_keys.section`).

    A format may also have a method `ragged(files, options)`. It returns the inputs
    whose second axis is a length that padding does not change, with their padding
    values. The compiler checks that, and ignores inputs that a model does not have. Its
    attribute `optional_outputs` may name outputs of such models that a request gets
    only if its scheduler asks for them (`FormatRunner`). Its method `examples(files,
    options, names)` returns rows for the inputs `names` of the converted model, which
    `popgate compile --quantize` needs.
    """

    section: type[Any]

    def files(self, folder: Path, options: Any) -> tuple[Path, ...]:
        """Return the files of the model in `folder`, the ONNX file first; empty if the
        folder has another format.

        Raises OSError.
        """

    def notes(self, files: Sequence[Path], options: Any) -> Sequence[str]:
        """Return the parsed description of a folder, for `popgate validate`.

        Raises ValueError as `recipe`.
        """

    def recipe(self, files: Sequence[Path], options: Any) -> Mapping[str, Any]:
        """Return the arguments of `convert`, in types that JSON supports.

        They are part of the key of the compiled file, so they must differ if the result
        does. `options` is the model's `section`. Raises ValueError for a folder that
        cannot be served, naming file and key.
        """

    def convert(self, model: Any, recipe: Mapping[str, Any]) -> None:
        """Change an `onnx.ModelProto`. Called in the process that compiles.

        Raises ValueError if the model does not fit.
        """

    def scheduler(
        self, spec: ModelSpec, runner: FormatRunner, files: Sequence[Path], options: Any
    ) -> FormatScheduler:
        """Return the scheduler for requests to the loaded model. Raises ValueError.

        `spec` has the tensors of the converted model.
        """


class InputDecoder(Protocol):
    """Turns the inputs of requests into those of a model of any kind.

    It applies if the model's ``config.toml`` has the section of its name. `section` is
    the class of that section (`app.config.config_keys.section`). For all threads.
    """

    section: type[Any]

    def scheduler(
        self, spec: ModelSpec, runner: Runner, options: Any
    ) -> FormatScheduler:
        """Return the scheduler for requests to the loaded model.

        Raises ValueError for a model that does not suit the section.
        """


def decoder_of(sections: Mapping[str, Any]) -> tuple[InputDecoder, Any] | None:
    """Return the decoder whose section a model's configuration contains, and the
    section.
    """
    for name, one in plugins(INPUT_DECODERS).items():
        if name in sections:
            return one, sections[name]
    return None


def format_named(name: str) -> ModelFormat:
    """Return the format with that name, which a scan has found."""
    found: ModelFormat = plugins(MODEL_FORMATS)[name]
    return found


def join_format(shared: SharedFormat, runner: FormatRunner) -> FormatScheduler:
    """Return a scheduler for a model that another process has loaded.

    Raises ValueError, OSError.
    """
    kind: Any = format_named(shared.format)
    made: FormatScheduler = kind.join(shared.spec, runner, shared.description)
    return made


def recognise(
    folder: Path, sections: Mapping[str, Any]
) -> tuple[str, tuple[Path, ...]]:
    """Return the format of a folder and the model's files; empty if no plugin
    recognises it.

    `sections` are those of the model's configuration. Raises OSError.
    """
    for name, one in plugins(MODEL_FORMATS).items():
        files = one.files(folder, sections.get(name) or one.section())
        if files:
            return name, tuple(files)
    return "", ()
