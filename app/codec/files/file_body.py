"""A body that is one file: the element of a model's only BYTES input.

A picture, a sound, a PDF document or plain text is sent unchanged, under its own
content type or without one. The response is JSON unless Accept names another encoding.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.codec.chunks import Chunks, beginning
from app.codec.inputs import Input
from app.codec.media import UNCERTAIN_TYPES, media_type_of, unrecognised
from app.codec.messages import Body, InferRequest
from app.errors import MalformedBody, UnsupportedMediaType
from app.spec import ModelSpec, TensorSpec, notation


class FileReader:
    """Reads bodies that are files, for one model.

    `encoded` are the numeric inputs that also accept files, described as inputs of
    BYTES.
    """

    __slots__ = ("_input", "spec")

    def __init__(
        self, spec: ModelSpec, inputs: dict[str, Input], encoded: Mapping[str, Input]
    ) -> None:
        self.spec = spec
        self._input = _only_file_input(spec, inputs, encoded)

    def read(
        self, content_type: bytes | None, body: Body, request: InferRequest
    ) -> None:
        """Fill in a request from a file. Raises `app.errors.RequestError`."""
        found = self._input
        media_type = media_type_of(content_type)
        if found is None:
            if media_type in UNCERTAIN_TYPES:
                raise unrecognised(beginning(body, 64), how_to_send(self.spec))
            shown = media_type[:200].decode("ascii", "backslashreplace")
            msg = f"content type '{shown}' is not supported by model "
            raise UnsupportedMediaType(f"{msg}'{self.spec.name}': {_why(self.spec)}")
        size = sum(map(len, body))
        if not size:
            msg = f"the body is empty; expected the bytes of input '{found.name}'"
            raise MalformedBody(msg)
        parts = Chunks(body, size).read(size)
        request.inputs[found.name] = found.from_file(parts)

    def __repr__(self) -> str:
        return f"<FileReader {self.spec.name!r} {self._input!r}>"


def _only_file_input(
    spec: ModelSpec, inputs: Mapping[str, Input], encoded: Mapping[str, Input]
) -> Input | None:
    """Return the one input that a body can fill; None if there is not exactly one."""
    found: Input | None = None
    for tensor in spec.inputs:
        one = encoded.get(tensor.name) or inputs[tensor.name]
        if not one.item_size:
            if found is not None:
                return None
            found = one
        elif tensor.name not in spec.defaults:
            return None
    return found


def _why(spec: ModelSpec) -> str:
    """Return why a model does not accept a file as body, and how to send one."""
    takes = ", ".join(
        f"'{one.name}' {notation(one.datatype, one.shape)}" for one in spec.inputs
    )
    msg = "a file can be the body if the model takes BYTES and nothing else, and this "
    msg += f"model takes {takes or 'no input'}; {how_to_send(spec)}"
    if any(_could_be_picture(one) for one in spec.inputs):
        msg += "; to send pictures, add a section [image] to its config.toml"
    return msg


def _could_be_picture(tensor: TensorSpec) -> bool:
    dims = tensor.shape or ()
    return tensor.type.kind in "fu" and len(dims) in (3, 4)


def how_to_send(spec: ModelSpec) -> str:
    """Return how a request with files is sent to a model."""
    if len(spec.inputs) < 2:
        return "send JSON (application/json), msgpack or an .npy array"
    return (
        "send a form (multipart/form-data) with one part for each input, or JSON "
        "(application/json)"
    )
