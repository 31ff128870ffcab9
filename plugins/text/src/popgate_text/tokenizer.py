"""Conversion of strings to token ids, by the tokenizer in a model's folder.

It may run in any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.errors import InvalidTensor
from popgate_text.folder import TOKENIZER, TextModel

#: Characters per token that are read at most. Text beyond them would be cut off anyway.
CHARACTERS_A_TOKEN: Final = 250
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
    """One token, for people. `start` and `stop` are characters, None if special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


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
    ) -> list[Encoded]:
        """Return the tokens of each text.

        Raises `InvalidTensor` for an empty text, and for one that is too long if
        truncation is off.
        """
        most = self.model.max_length
        tokenizer = self._cut[side] if truncate else self._whole
        found = []
        for n, text in enumerate(texts):
            pair = None if pairs is None else self._cleaned(pairs[n], truncate, side)
            one = self._cleaned(text, truncate, side)
            try:
                encoding: Any = tokenizer.encode(one, pair)
            except (UnicodeEncodeError, TypeError):  # depends on the library's version
                raise InvalidTensor(
                    f"text {n} has a lone surrogate, which is no character"
                ) from None
            if len(encoding.ids) > most:
                msg = (
                    f"text {n} has {len(encoding.ids)} tokens, and the model takes "
                    f"{most}; shorten it, or allow it to be cut (truncate)"
                )
                raise InvalidTensor(msg)
            if not encoding.ids:
                raise InvalidTensor(f"text {n} is empty")
            types = encoding.type_ids if self.model.types else [0] * len(encoding.ids)
            found.append(Encoded(encoding.ids, types))
        return found

    def _cleaned(self, text: str, truncate: bool, side: str) -> str:
        most = self.model.max_length * CHARACTERS_A_TOKEN
        if len(text) > most:
            if not truncate:
                msg = f"a string of {len(text)} characters is longer than {most}"
                raise InvalidTensor(
                    f"{msg}; shorten it, or allow it to be cut (truncate)"
                )
            text = text[:most] if side == "right" else text[-most:]
        return text.lower() if self.model.lower_case else text

    def tokens(self, text: str, *, special: bool = True) -> list[Token]:
        """Return the tokens of a string as people read them."""
        cleaned = self._cleaned(text, True, "right")
        encoding: Any = self._whole.encode(cleaned, add_special_tokens=special)
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
        return str(self._whole.decode(list(ids), skip_special_tokens=skip_special))

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise `InvalidTensor` for ids beyond the vocabulary."""
        for number in ids:
            if not 0 <= number < self.size:
                msg = (
                    f"token id {number} is outside the vocabulary of {self.size}: the "
                    f"client seems to send tokens of another model (LangChain: "
                    f"set check_embedding_ctx_length=False)"
                )
                raise InvalidTensor(msg)

    def __repr__(self) -> str:
        return f"<TextTokenizer {self.size} tokens, {self.model.max_length} a text>"
