"""The section `[text]` of a model's ``config.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Strict

from app.config.config_keys import between, checked, key, section, text

#: Pooling modes, by the names that sentence-transformers 5.4 and later write.
POOLING_MODES: Final = (
    "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken",
)  # fmt: skip
#: The highest allowed `max_texts`.
MOST_TEXTS: Final = 1 << 16
Kind = Literal["", "embedding", "reranker", "classifier", "splade"]


def _pooling(value: object) -> tuple[str, ...]:
    modes = [value] if isinstance(value, str) else value
    if not isinstance(modes, list) or not modes:
        raise ValueError("a pooling mode or a list of them")
    for mode in modes:
        if mode not in POOLING_MODES:
            raise ValueError(f"one of {', '.join(POOLING_MODES)}")
    return tuple(modes)


@section
@dataclass(frozen=True, slots=True)
class TextConfig:
    """Options of a text model. Options that are not set come from its folder."""

    file: Annotated[str, text(400)] = key("", "the ONNX file, as in onnx/model_O2.onnx")
    kind: Kind = key("", "embedding, reranker, classifier or splade")
    pooling: Annotated[tuple[str, ...], checked(_pooling)] = key(
        (), "how token vectors become one vector; several modes are joined"
    )
    normalize: Annotated[bool, Strict()] | None = key(
        None, "whether vectors have length 1"
    )
    max_length: Annotated[int, between(0, 1 << 20)] = key(
        0, "most tokens of a string; 0: the limit in the folder's files"
    )
    truncate: Annotated[bool, Strict()] = key(
        True, "whether to cut longer texts; if not, they are refused"
    )
    prompt: Annotated[str, text(100)] = key(
        "", "name of the prompt to put before texts by default"
    )
    token_input: Annotated[bool, Strict()] = key(
        False, "whether requests may send token ids instead of texts"
    )
    max_texts: Annotated[int, between(1, MOST_TEXTS)] = key(
        2048, "most texts in a request"
    )
    max_concurrent_texts: Annotated[int, between(1, 1 << 24)] = key(
        16_384, "most texts of all requests in flight, in each HTTP worker"
    )
    max_request_tokens: Annotated[int, between(1, 1 << 24)] = key(
        300_000, "most tokens in a request"
    )

    @property
    def most_texts(self) -> int:
        """Return how many texts a request may have."""
        return min(self.max_texts, self.max_concurrent_texts)
