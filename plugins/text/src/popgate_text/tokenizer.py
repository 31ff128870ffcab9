"""Conversion of strings to token ids, by the tokenizer in a model's folder.

It may run in any thread.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.errors import InvalidTensor
from popgate_text.folder import TOKENIZER, TextModel

#: Most characters that are read per token. More text would be cut off anyway.
CHARACTERS_A_TOKEN: Final = 250
#: Characters that the library tokenizes in one call, at least. Each call takes the
#: interpreter's lock again.
_CHARACTERS_A_CALL: Final = 4096
#: Tokens of a pair's text that are read beyond the model's length, because cutting a
#: word changes its tokens.
_SPARE: Final = 64
#: A pair of up to this many characters per token of the model is not shortened.
_SHORT: Final = 4
# The strings of a call are tokenized in the calling thread: cores belong to devices.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_NEEDED: Final = (
    "text models need the packages of popgate[text] (pip install 'popgate[text]')"
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of one text, or of a pair of texts."""

    ids: Sequence[int]
    types: Sequence[int]


@dataclass(frozen=True, slots=True)
class Token:
    """One token, in readable form. `start` and `stop` are characters, None if
    special.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Beginnings(NamedTuple):
    """The number of a text's tokens, and two beginnings of the text that suffice in a
    pair. `less` is a little longer than the model takes, `more` is a little longer than
    `less`.
    """

    tokens: int
    less: str
    more: str


def shortened(first: Beginnings, second: Beginnings) -> tuple[str, str]:
    """Return a pair of texts in which the longer one still has more tokens.

    The library cuts both to half of the model's length; the longer one keeps one token
    more. It would also make all combinations of the parts that it cuts off: 10,000 for
    two strings of 64,000 characters, which take a second and 300 MB.
    """
    one = first.more if first.tokens > second.tokens else first.less
    two = second.more if second.tokens > first.tokens else second.less
    return one, two


class TextTokenizer:
    """The tokenizer of one model. Raises ValueError if it cannot be read."""

    def __init__(self, folder: Path, model: TextModel) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ValueError(_NEEDED) from None
        data = (folder / TOKENIZER).read_bytes()
        #: Digest of the file, so that another process can check that it reads the same
        #: file.
        self.digest = hashlib.sha256(data).hexdigest()
        try:
            text = data.decode()
            self._whole = Tokenizer.from_str(text)
            # Truncating is a setting of the whole tokenizer, not of a call.
            self._cut = {side: Tokenizer.from_str(text) for side in ("right", "left")}
        except Exception as e:  # the library raises plain Exception
            raise ValueError(f"{TOKENIZER}: {e}") from None
        self.folder = folder
        self.model = model
        for tokenizer in (self._whole, *self._cut.values()):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        for side, tokenizer in self._cut.items():
            tokenizer.enable_truncation(model.max_length, direction=side)
        self.size: int = self._whole.get_vocab_size()
        pad = self._whole.token_to_id(model.pad_token) if model.pad_token else None
        self.pad_id: int = 0 if pad is None else pad

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncate: bool = True,
        side: str = "right",
    ) -> Iterator[list[Encoded]]:
        """Yield the tokens of each text, those of a few texts at a time.

        Raises `InvalidTensor` for an empty text, and for one that is too long if
        truncation is off.
        """
        most = self.model.max_length
        tokenizer = self._cut[side] if truncate else self._whole
        given: list[Any] = []
        size = 0
        # A reranker has one query beside many documents.
        beginnings = lru_cache(2)(partial(self._beginnings, side=side))
        for n, text in enumerate(texts):
            one = self._cleaned(text, truncate, side)
            size += len(one)
            if pairs is None:
                given.append(one)
            else:
                pair = one, self._cleaned(pairs[n], truncate, side)
                if truncate and sum(map(len, pair)) > _SHORT * most:
                    pair = shortened(beginnings(pair[0]), beginnings(pair[1]))
                size += len(pair[1])
                given.append(pair)
            if size < _CHARACTERS_A_CALL and n + 1 < len(texts):
                continue
            found: list[Encoded] = []
            first = n + 1 - len(given)
            for number, encoding in enumerate(_encoded(tokenizer, given, first), first):
                ids = encoding.ids
                if len(ids) > most:
                    msg = (
                        f"text {number} has {len(ids)} tokens, but the model takes "
                        f"at most {most}; shorten it, or allow the server to cut it "
                        "(truncate)"
                    )
                    raise InvalidTensor(msg)
                if not ids:
                    raise InvalidTensor(f"text {number} is empty")
                types = encoding.type_ids if self.model.types else [0] * len(ids)
                found.append(Encoded(ids, types))
            yield found
            given, size = [], 0

    def _cleaned(self, text: str, truncate: bool, side: str) -> str:
        most = self.model.max_length * CHARACTERS_A_TOKEN
        if len(text) > most:
            if not truncate:
                msg = f"a string has {len(text)} characters, expected at most {most}"
                raise InvalidTensor(
                    f"{msg}; shorten it, or allow the server to cut it (truncate)"
                )
            text = text[:most] if side == "right" else text[-most:]
        return text.lower() if self.model.lower_case else text

    def _beginnings(self, text: str, side: str) -> Beginnings:
        encoding: Any
        try:
            (encoding,) = self._whole.encode_batch([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            return Beginnings(0, text, text)  # `encode` names it
        offsets = encoding.offsets
        cut = []
        for most in (
            self.model.max_length + _SPARE,
            self.model.max_length + 2 * _SPARE,
        ):
            if len(offsets) <= most:
                cut.append(text)
            elif side == "right":
                cut.append(text[: offsets[most - 1][1]])
            else:
                cut.append(text[offsets[-most][0] :])
        return Beginnings(len(offsets), *cut)

    def tokens(self, text: str, *, special: bool = True) -> list[Token]:
        """Return the tokens of a string in readable form."""
        cleaned = self._cleaned(text, True, "right")
        encoding: Any
        (encoding,) = self._whole.encode_batch([cleaned], add_special_tokens=special)
        return [
            Token(
                number,
                token if is_special else cleaned[start:stop],
                bool(is_special),
                None if is_special else start,
                None if is_special else stop,
            )
            for number, token, is_special, (start, stop) in zip(
                encoding.ids,
                encoding.tokens,
                encoding.special_tokens_mask,
                encoding.offsets,
                strict=True,
            )
        ]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids. Raises `InvalidTensor` for ids beyond the
        vocabulary."""
        self.check_ids(ids)
        (text,) = self._whole.decode_batch(
            [list(ids)], skip_special_tokens=skip_special
        )
        return str(text)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise `InvalidTensor` for ids beyond the vocabulary."""
        for number in ids:
            if not 0 <= number < self.size:
                msg = (
                    f"token id {number} is outside the vocabulary of "
                    f"{self.size} tokens; the client seems to send tokens of "
                    "another model (LangChain: set "
                    "check_embedding_ctx_length=False)"
                )
                raise InvalidTensor(msg)

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.size} tokens, {self.model.max_length} a text>"


def _encoded(tokenizer: Any, given: Sequence[Any], first: int) -> Sequence[Any]:
    """Return the library's encodings of strings, or of pairs of strings.

    `encode_batch_fast` releases the interpreter's lock, which `encode` holds as long as
    it runs: 0.1 s for a string of 64,000 characters. It leaves out offsets, which take
    a sixth to a third of the time. Raises `InvalidTensor`; `first` is the number of
    the first string.
    """
    try:
        return tokenizer.encode_batch_fast(given)  # type: ignore[no-any-return]
    except (UnicodeEncodeError, TypeError):  # depends on the library's version
        for number, one in enumerate(given, first):
            if not _is_unicode(one):
                msg = f"text {number} has a lone surrogate, which is not a character"
                raise InvalidTensor(msg) from None
        raise


def _is_unicode(one: Any) -> bool:
    try:
        for text in (one,) if isinstance(one, str) else one:
            text.encode()
    except UnicodeEncodeError:
        return False
    return True
