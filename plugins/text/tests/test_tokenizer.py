"""Strings become token ids, also while other threads work."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from tokenizers import Tokenizer

from app.errors import InvalidTensor
from plugins.text.tests.folders import WORDS, embedding_folder
from popgate_text.config import TextConfig
from popgate_text.folder import understand
from popgate_text.tokenizer import Beginnings, Encoded, TextTokenizer, shortened

TEXTS = [" ".join(WORDS[: n % len(WORDS)] * (1 + n % 6)) or "the" for n in range(150)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedding_folder(tmp_path_factory.mktemp("models") / "unit")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer(folder, understand(folder, TextConfig()))


def rows(parts: Iterable[list[Encoded]]) -> list[Encoded]:
    return [*itertools.chain.from_iterable(parts)]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("in_pairs", [False, True])
def test_many_texts_give_the_tokens_of_each_alone(
    folder: Path, tokenizer: TextTokenizer, side: str, in_pairs: bool
) -> None:
    alone = Tokenizer.from_file(str(folder / "tokenizer.json"))
    alone.enable_truncation(tokenizer.model.max_length, direction=side)
    pairs = TEXTS[::-1] if in_pairs else None
    found = rows(tokenizer.encode(TEXTS, pairs, side=side))
    for number, one in enumerate(found):
        right = alone.encode(TEXTS[number], pairs[number] if pairs else None)
        assert list(one.ids) == right.ids
        assert list(one.types) == (
            right.type_ids if tokenizer.model.types else [0] * len(right.ids)
        )
    assert len(found) == len(TEXTS)


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_of_pairs_are_shortened_without_effect(
    folder: Path, tokenizer: TextTokenizer, side: str
) -> None:
    most = tokenizer.model.max_length
    words = [WORDS[n * n % len(WORDS)] for n in range(8 * most)]
    alone = Tokenizer.from_file(str(folder / "tokenizer.json"))
    alone.enable_truncation(most, direction=side)
    sizes = (1, most // 2, most + 50, most + 70, 4 * most, 4 * most + 1, 8 * most)
    texts = [" ".join(words[:size]) for size in sizes]
    for pair in itertools.product(texts, texts):
        ((found,),) = tokenizer.encode([pair[0]], [pair[1]], side=side)
        assert list(found.ids) == alone.encode(*pair).ids


def test_the_longer_text_of_a_pair_stays_the_longer_one() -> None:
    long, longer = Beginnings(900, "a", "a b"), Beginnings(901, "c", "c d")
    assert shortened(long, longer) == ("a", "c d")
    assert shortened(longer, long) == ("c d", "a")
    assert shortened(long, long) == ("a", "a")


def test_an_error_names_the_text(tokenizer: TextTokenizer) -> None:
    for number in (0, 100, len(TEXTS) - 1):
        texts = [*TEXTS]
        texts[number] = "the \ud800"
        with pytest.raises(InvalidTensor, match=f"text {number} has a lone surrogate"):
            rows(tokenizer.encode(texts))
        with pytest.raises(InvalidTensor, match=f"text {number} has a lone surrogate"):
            rows(tokenizer.encode(TEXTS, texts))
        texts[number] = "the " * 100
        with pytest.raises(InvalidTensor, match=f"text {number} has 102 tokens"):
            rows(tokenizer.encode(["the"] * number + texts[number:], truncate=False))


def turns_beside(call: Callable[[], object]) -> int:
    """Return how often this thread works while another one calls."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call)
        turns = 0
        while not done.done():
            turns += 1
            time.sleep(0)
    assert done.result()
    return turns


def test_others_work_while_a_long_text_is_tokenized(tokenizer: TextTokenizer) -> None:
    text = "the cat " * 2_000  # as long as is read of any text
    calls: dict[str, Callable[[], object]] = {
        "encode": lambda: rows(tokenizer.encode([text] * 5)),
        "tokens": lambda: [len(tokenizer.tokens(text)) for _ in range(5)],
        "decode": lambda: tokenizer.decode([5] * 500_000),
    }
    for name, call in calls.items():
        # A call that holds the lock leaves about two turns. On a busy machine one that
        # releases it may leave few, but not each time.
        assert any(turns_beside(call) > 40 for _ in range(100)), name
