"""Counters of the tokens that a text model runs, and of the time of tokenizing."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from app.observe.histogram import Histogram

#: Upper bounds of the histogram of batches, in tokens with padding.
TOKEN_BUCKETS: Final = (
    8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
)  # fmt: skip


class TokenCounts:
    """The tokens of one request, row by row, and the time of tokenizing it."""

    __slots__ = ("padded", "shares", "tokenizing_ns", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.padded = 0
        self.tokenizing_ns = 0
        #: The request's share of each batch, by the batch's bucket.
        self.shares: dict[int, float] = {}

    def add(self, length: int, rows: int, longest: int) -> None:
        """Count a row of `length` tokens.

        It ran among `rows` rows that were padded to `longest`.
        """
        longest = max(length, longest)
        rows = max(1, rows)
        self.tokens += length
        self.padded += longest
        bucket = bisect_left(TOKEN_BUCKETS, rows * longest)
        self.shares[bucket] = self.shares.get(bucket, 0.0) + 1 / rows

    @property
    def runs(self) -> float:
        """Return the request's share of all batches in which its rows ran."""
        return sum(self.shares.values())

    def __repr__(self) -> str:
        return f"<TokenCounts {self.tokens} tokens, {self.padded} with padding>"


class TokenMetrics:
    """The tokens of all successful requests to one version of a model.

    `padded` counts the tokens that ran, padding included. `batches` has the number of
    batches by bucket: each row adds its share, so the sum is right even if several
    processes sent the rows of one batch.
    """

    __slots__ = ("batches", "padded", "tokenizing", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.padded = 0
        self.batches = [0.0] * (len(TOKEN_BUCKETS) + 1)
        self.tokenizing = Histogram()

    def count(self, one: TokenCounts) -> None:
        """Count a request that was answered."""
        self.tokens += one.tokens
        self.padded += one.padded
        for bucket, share in one.shares.items():
            self.batches[bucket] += share
        self.tokenizing.observe(one.tokenizing_ns)

    def statistics(self) -> dict[str, object]:
        """Return the document of the numbers; empty if no tokens have run."""
        if not self.tokens:
            return {}
        tokenizing = self.tokenizing
        return {
            "tokens": self.tokens,
            "padded_tokens": self.padded,
            "batches": round(sum(self.batches)),
            "tokenizing": {"count": tokenizing.count, "ns": tokenizing.sum_ns},
        }

    def add(self, other: TokenMetrics) -> None:
        """Add the counts of another process."""
        self.tokens += other.tokens
        self.padded += other.padded
        for bucket, share in enumerate(other.batches):
            self.batches[bucket] += share
        self.tokenizing.add(other.tokenizing)

    def __repr__(self) -> str:
        return f"<TokenMetrics {self.tokens} tokens, {self.padded} with padding>"
