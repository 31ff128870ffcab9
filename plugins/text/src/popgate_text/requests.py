"""Documents of text requests: their fields, and the requests made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.codec.chunks import join
from app.codec.json_lists import parse_listed
from app.codec.json_text import check_json_size
from app.codec.messages import Body, Encoding, InferRequest
from app.codec.model import ModelCodec
from app.codec.shapes import shown
from app.errors import HttpError, InvalidRequest, InvalidTensor
from app.limits import DEFAULT_LIMITS, Limits
from app.spec import ModelSpec
from popgate_text.config import MOST_TEXTS
from popgate_text.scheduler import OPTIONS, PAIR, TEXT, WRONG_KIND, TextOptions

EMPTY = "empty_input"


def read_document(body: Body, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """Return the JSON object of a body. Raises `RequestError`."""
    text = join(body)
    check_json_size(len(text), limits)
    document = parse_listed(text, limits)
    if type(document) is not dict:
        raise InvalidRequest(f"expected a JSON object, got {shown(document)}")
    return document


def kind_of(spec: ModelSpec) -> str:
    """Return the kind of a text model by its tensors; empty if it is not one."""
    if TEXT not in spec.inputs_by_name or len(spec.outputs) != 1:
        return ""
    names = {"embedding": "embedding", "weights": "splade", "scores": "classifier"}
    kind = names.get(spec.outputs[0].name, "")
    is_pairs = PAIR in spec.inputs_by_name and not spec.optional_inputs
    return "reranker" if kind == "classifier" and is_pairs else kind


def check_kind(codec: ModelCodec, *wanted: str) -> None:
    """Raise `HttpError` (424) for a model of another kind."""
    check_kind_of(codec.spec.name, kind_of(codec.spec), *wanted)


def check_kind_of(name: str, kind: str, *wanted: str) -> None:
    """Raise `HttpError` (424) for model `name` if its kind is not wanted."""
    if kind not in wanted:
        found = f"a text model of kind {kind}" if kind else "not a text model"
        msg = f"model '{name}' is {found}; expected {' or '.join(wanted)}"
        raise HttpError(424, msg, WRONG_KIND)


def field(
    document: Mapping[str, Any], name: str, kind: type, default: Any = None
) -> Any:
    """Return an optional field. Raises `InvalidRequest` for one of another type."""
    value = document.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        wanted = {str: "a string", bool: "true or false", int: "a whole number"}
        msg = f"'{name}' must be {wanted[kind]}, got {shown(value)}"
        raise InvalidRequest(msg)
    return value


def query_of(document: Mapping[str, Any]) -> str:
    """Return the query of a ranking, which is not empty. Raises `InvalidRequest`."""
    query: str | None = field(document, "query", str)
    if query is None:
        raise InvalidRequest("'query' is missing; expected a string")
    if not query:
        raise HttpError(400, "'query' is empty", EMPTY)
    return query


def strings(value: object, name: str) -> list[str]:
    """Return a list of strings, none of them empty. Raises `InvalidRequest`."""
    if type(value) is list and len(value) > MOST_TEXTS:
        # No model accepts so many, and copying them would delay other requests.
        msg = f"'{name}' has {len(value)} strings, more than the {MOST_TEXTS}"
        raise InvalidTensor(f"{msg} that [text] max_texts can allow")
    if type(value) is not list or not all(type(item) is str for item in value):
        raise InvalidRequest(f"'{name}' must be a list of strings")
    for number, item in enumerate(value):
        if not item:
            raise HttpError(400, f"'{name}' has an empty string at {number}", EMPTY)
    if not value:
        raise HttpError(400, f"'{name}' is empty", EMPTY)
    return value


def texts_or_ids(value: object, name: str) -> tuple[list[str], list[list[int]] | None]:
    """Return texts, or token ids, from a field that has one or many of either.

    Raises `InvalidRequest`.
    """
    if type(value) is str:
        return strings([value], name), None
    if type(value) is list and value:
        first = value[0]
        if type(first) is int:
            return [], [_ids(value, name)]
        if type(first) is list:
            return [], [_ids(item, name) for item in value]
        return strings(value, name), None
    if value == []:
        raise HttpError(400, f"'{name}' is empty", EMPTY)
    raise InvalidRequest(
        f"'{name}' must be a string, or a list of strings or token ids"
    )


def _ids(value: object, name: str) -> list[int]:
    if type(value) is not list or not all(type(item) is int for item in value):
        raise InvalidRequest(f"'{name}' must be a list of token ids")
    if not value:
        raise HttpError(400, f"'{name}' has an empty list of token ids", EMPTY)
    return value


def text_request(
    options: TextOptions, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> InferRequest:
    """Return the request for these texts, or for `options.ids`."""
    if options.ids is None:
        options.texts, options.pairs = texts, pairs
    request = InferRequest({}, Encoding.JSON)
    request.rows = len(texts) if options.ids is None else len(options.ids)
    request.parameters = {OPTIONS: options}
    return request


def given_options(request: InferRequest) -> TextOptions:
    """Return the options of a request that a form has made."""
    found = (request.parameters or {})[OPTIONS]
    assert isinstance(found, TextOptions)
    return found
