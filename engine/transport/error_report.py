"""`ErrorReport`: an error of the engine as a message between processes."""

from __future__ import annotations

import errno

from engine import errors
from engine.errors import EngineBug, EngineError, InvalidModel, OutOfMemory
from engine.transport.messages import MAX_MESSAGE, Message
from popef_io import PopefError


class ErrorReport(Message, frozen=True):
    """An error of the engine: the name of its class, and its text."""

    error: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Return an error as a message. An error of a PopEF file becomes InvalidModel,
        because a file's damage shows only when its content is used.
        """
        if isinstance(error, PopefError):
            error = InvalidModel(str(error))
        is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if is_full or isinstance(error, MemoryError):  # such as no memory to map a file
            why = f"the device does not have enough memory: {error}"
            error = OutOfMemory(why.removesuffix(": "))
        if not isinstance(error, EngineError):
            return cls("EngineBug", _cut(f"{type(error).__name__}: {error}"))
        return cls(type(error).__name__, _cut(str(error)))

    def to_error(self) -> EngineError:
        """Return the error that the message stands for."""
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, EngineError)):
            text = f"unknown error {self.error!r} from a device: {self.message}"
            return EngineBug(text)
        if kind is EngineBug:
            return EngineBug(self.message.removesuffix("; this is a bug"))
        return kind(self.message)


def _cut(text: str) -> str:
    """Return the part of a string that fits into a message."""
    return text.encode(errors="replace")[: MAX_MESSAGE // 2].decode(errors="ignore")
