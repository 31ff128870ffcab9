"""Calls of text models: vectors, ranks and classes of strings, as steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

from popgate_client.core import Core, quoted
from popgate_client.errors import InvalidRequest
from popgate_client.shared import call_options
from popgate_client.steps import Steps
from popgate_client.tensors import Array


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document with its score; `index` is its place in the list that was sent."""

    index: int
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Label:
    """A class of a string with its score."""

    label: str
    score: float


def embed(
    core: Core,
    model: str,
    texts: str | Many[str],
    version: str,
    parameters: Mapping[str, Any],
    timeout: float | None,
) -> Steps[Array]:
    """Return a vector for each string; one vector for a single string."""
    given = strings(texts)
    chosen = {name: value for name, value in parameters.items() if value is not None}
    options = call_options(("embedding",), chosen, 0, "", timeout, None)
    outputs = yield from core.infer(model, version, {"text": given}, options)
    vectors: Array = outputs["embedding"]
    return vectors[0] if isinstance(texts, str) else vectors


def rerank(
    core: Core,
    model: str,
    query: str,
    texts: Many[str],
    top: int | None,
    timeout: float | None,
    *,
    raw: bool,
) -> Steps[list[Ranked]]:
    """Return the documents, the best first."""
    given = strings(texts)
    document = {"query": query, "texts": given, "raw_scores": raw}
    path = f"/v1/models/{quoted(model)}/rerank"
    found = yield from core.ask("POST", path, document, timeout)
    return [
        Ranked(one["index"], one["score"], given[one["index"]]) for one in found[:top]
    ]


def classify(
    core: Core, model: str, texts: str | Many[str], timeout: float | None, *, raw: bool
) -> Steps[Any]:
    """Return the classes of each string, the best first; one list for a
    single string.
    """
    document = {"inputs": [[text] for text in strings(texts)], "raw_scores": raw}
    path = f"/v1/models/{quoted(model)}/predict"
    found = yield from core.ask("POST", path, document, timeout)
    rows = [[Label(one["label"], one["score"]) for one in row] for row in found]
    return rows[0] if isinstance(texts, str) else rows


def strings(texts: str | Many[str]) -> list[str]:
    """Return a list of strings, also for a single one. Raises `InvalidRequest`."""
    several = not isinstance(texts, str) and isinstance(texts, Iterable)
    given: list[Any] = list(texts) if several else [texts]
    for number, text in enumerate(given):
        if not isinstance(text, str):
            msg = f"expected strings, got {type(text).__name__} at {number}"
            raise InvalidRequest(msg)
    if not given:
        raise InvalidRequest("expected at least one string, got none")
    return given
