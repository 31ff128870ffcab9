"""Example inputs of text models, to measure the effect of a change to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from popgate_text.folder import TextModel
from popgate_text.tokenizer import TextTokenizer

_STRINGS: Final = (
    "The cat sits on the mat.",
    "A server batches the requests of several clients.",
    "How do I return this order?",
    "The train to the coast leaves at nine in the morning and arrives after noon.",
    "Interest rates rose for the third time this year.",
    "Add two eggs and whisk until the mixture is smooth.",
    "What is the capital of France?",
    "The patient was given 20 mg of the drug twice a day for two weeks.",
    "def read(path): return open(path).read()",
    "It rained all night, so we had to take the long way over the hills to the town.",
    "Great product, fast delivery, would buy again!",
    "I am disappointed: the screen broke after two days.",
    "Die Katze sitzt auf der Matte.",
    "Le chat est assis sur le tapis.",
    "2026-03-01 12:30:11 ERROR connection refused by 10.0.0.7",
    "Hello",
)


def examples(
    model: TextModel, tokenizer: TextTokenizer, names: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return a row for each example; pairs if the model compares texts."""
    pairs = None
    if model.kind == "reranker":
        pairs = [*_STRINGS[1:], _STRINGS[0]]
    found: list[Mapping[str, Any]] = []
    for row in chain.from_iterable(tokenizer.encode(_STRINGS, pairs)):
        count = len(row.ids)
        values = {
            "input_ids": row.ids,
            "attention_mask": [1] * count,
            "token_type_ids": row.types,
            "position_ids": range(model.offset, model.offset + count),
        }
        found.append({name: np.array([values[name]], np.int64) for name in names})
    return found
