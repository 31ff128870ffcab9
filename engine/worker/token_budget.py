"""The number of tokens up to which a larger batch makes a token cheaper.

A call costs the same for few tokens as for many, so the time per token falls with the
size of a batch. At some size it stops falling, and for long rows it rises again. Where
that is depends on the model, the length of its rows and the device, so the device
measures it while it runs.

Sizes are classes of a factor of two, kept apart for each class of lengths. A class
keeps its last few times per token. Other work on the machine only adds time, so the
quicker ones of them count. One batch in `PROBED` tries the next larger or smaller
class, or a row alone.

This is a machine without a clock: `limit` and `next_limit` give the size, `record`
takes the measured time.
"""

from __future__ import annotations

from typing import Final

#: The measured batches that a class keeps, and the fewest by which it is judged.
KEPT: Final = 8
JUDGED: Final = 4
#: A larger batch must save this part of the time per token.
WORTH: Final = 0.03
#: One batch in so many has the size of another class.
PROBED: Final = 16
#: Without a limit of the user, batches grow up to so many times the device's usual
#: size.
GROWTH: Final = 4


def size_class(tokens: int) -> int:
    """Return the least exponent of two that gives at least this number."""
    return max(0, tokens - 1).bit_length()


class Costs:
    """The times per token of rows of about one length, by class of batches."""

    __slots__ = ("_judged", "_taken", "_times", "best", "least", "most")

    def __init__(self, least: int, usual: int, most: int) -> None:
        self.least = least
        self.most = max(least, most)
        self.best = max(least, min(usual, self.most))
        self._times: dict[int, list[float]] = {}
        #: The time by which a class is judged.
        self._judged: dict[int, float] = {}
        self._taken = 0

    def next_class(self) -> int:
        """Return the class of the next batch, which is not always the best."""
        self._taken += 1
        if self._taken % PROBED:
            return self.best
        turn = self._taken // PROBED % 4
        if turn == 0:
            return self.least  # one row alone, which may beat all neighbours
        step = -1 if turn == 2 else 1
        return max(self.least, min(self.most, self.best + step))

    def record(self, found: int, time: float) -> None:
        """Take the time per token of a batch of this class."""
        if not self.least <= found <= self.most:
            return
        times = self._times.setdefault(found, [])
        times.append(time)
        if len(times) < JUDGED:
            return
        del times[:-KEPT]
        judged = self._judged
        judged[found] = sorted(times)[len(times) // 4]
        if self.best in judged:
            enough = min(judged.values()) * (1 + WORTH)
            self.best = min(n for n, time in judged.items() if time <= enough)

    def __repr__(self) -> str:
        return f"<Costs up to {1 << self.best} tokens, {self._taken} batches>"


class TokenBudget:
    """The most tokens of a batch, padding included, for rows of each length.

    `usual` applies until something is measured. `most` is never exceeded.
    """

    __slots__ = ("_by_length", "_most", "_usual")

    def __init__(self, usual: int, most: int) -> None:
        self._usual = usual
        self._most = most
        self._by_length: dict[int, Costs] = {}

    def _of(self, length: int) -> Costs:
        number = size_class(length)
        found = self._by_length.get(number)
        if found is None:
            usual, most = size_class(self._usual), size_class(self._most)
            found = self._by_length[number] = Costs(number, usual, most)
        return found

    def limit(self, length: int) -> int:
        """Return the most tokens of a batch of rows of about this length."""
        return min(self._most, 1 << self._of(length).best)

    def next_limit(self, length: int) -> int:
        """Return the most tokens of the next batch, which may try another size."""
        return min(self._most, 1 << self._of(length).next_class())

    def record(self, longest: int, rows: int, took: int) -> None:
        """Take the time of a batch of rows padded to `longest`, in any unit."""
        tokens = longest * rows
        self._of(longest).record(size_class(tokens), took / tokens)

    def __repr__(self) -> str:
        best = ", ".join(
            f"{1 << length}: {1 << costs.best}"
            for length, costs in sorted(self._by_length.items())
        )
        return f"<TokenBudget usually {self._usual}, by length {{{best}}}>"
