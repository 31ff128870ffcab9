"""Numbers that a worker process counts and its supervisor reads, in shared memory.

A worker counts as every gateway does (`ModelMetrics`). At the end of each request,
before the answer leaves, it writes its counts into a block of its segment. So every
answered request is counted, even if the worker is killed with the next instruction. The
supervisor adds the segments up. If a worker dies, the supervisor keeps the counts of
its segment.

The map of the bytes
--------------------
    0        requests in flight on each device, by its number      (MOST_DEVICES words)
    4096     blocks of BLOCK_SIZE bytes, one for each version of a model
    …        the answers that it has written (app/observe/answers.py)
    …        its connections, log lines and spans that it dropped   (3 words)

A block, in words of 64 bits:
    0        pending     1 awaiting     2 inferences     3 failure ns
    4        last inference (a double)
    5 …      failures by reason
    …        three histograms (request, queue, compute): the sum, then the counts
    …        one more for each way to fail (`Outcome`)
    …        tokens, tokens with padding, a histogram (tokenizing), batches by their
             bucket of tokens (doubles)
    …        how many batch sizes follow; of each: rows, share (a double), compute ns
             (a double), input ns, output ns

Each word has one writer and is written whole, so that a reader sees the old value or
the new one. Pages are taken from the machine when they are first written.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from app.errors import FailureReason, Outcome, Row
from app.observe.answers import ANSWERS_SIZE, Answers
from app.observe.histogram import BOUNDS_NS, Histogram
from app.observe.metrics import MAX_BATCH_SIZES, BatchMetrics, ModelMetrics
from app.observe.processes import OwnNumbers
from app.observe.token_metrics import TOKEN_BUCKETS, TokenCounts
from engine import SharedMemory

#: Versions of models that one worker can count. The supervisor runs any others.
MOST_MODELS: Final = 4096
#: Devices whose requests in flight are counted.
MOST_DEVICES: Final = 512
_BLOCKS_AT: Final = 8 * MOST_DEVICES
_REASONS: Final = tuple(FailureReason)
_FAILURES: Final = 5
_HISTOGRAMS: Final = _FAILURES + len(_REASONS)
_COUNTS: Final = len(BOUNDS_NS) + 1
_OUTCOMES: Final = tuple(Outcome)
_FAILED: Final = _HISTOGRAMS + 3 * (1 + _COUNTS)
_TOKENS: Final = _FAILED + len(_OUTCOMES) * (1 + _COUNTS)
_TOKENIZING: Final = _TOKENS + 2
_TOKEN_BATCHES: Final = _TOKENIZING + 1 + _COUNTS
_SIZES: Final = _TOKEN_BATCHES + len(TOKEN_BUCKETS) + 1
_BATCH: Final = 5
_WORDS: Final = _SIZES + 1 + _BATCH * (MAX_BATCH_SIZES + 1)
BLOCK_SIZE: Final = -(-8 * _WORDS // 4096) * 4096
_ANSWERS_AT: Final = _BLOCKS_AT + MOST_MODELS * BLOCK_SIZE
_OWN_AT: Final = _ANSWERS_AT + ANSWERS_SIZE
SEGMENT_SIZE: Final = _OWN_AT + 8 * 3


class SharedMetrics(ModelMetrics):
    """Counters of one version in a worker, written through to its block."""

    __slots__ = ("_at", "_floats", "_words")

    def __init__(
        self, name: str, version: str, words: memoryview[int], floats: memoryview[float]
    ) -> None:
        super().__init__(name, version)
        self._words = words
        self._floats = floats
        #: The place of the numbers of each batch size.
        self._at: dict[int, int] = {}

    def success(
        self,
        total_ns: int,
        queue_ns: int = 0,
        compute_ns: int = 0,
        *,
        rows: int = 1,
        batch_rows: int = 1,
        input_ns: int = 0,
        output_ns: int = 0,
        runs: float = 0.0,
    ) -> None:
        """Count a success, as `ModelMetrics.success` does."""
        super().success(
            total_ns,
            queue_ns,
            compute_ns,
            rows=rows,
            batch_rows=batch_rows,
            input_ns=input_ns,
            output_ns=output_ns,
            runs=runs,
        )
        words, floats = self._words, self._floats
        words[2] = self.inference_count
        floats[4] = self.last_inference
        if batch_rows not in self.batches:
            batch_rows = max(self.batches)
        batch = self.batches[batch_rows]
        at = self._at.get(batch_rows, 0)
        if not at:
            at = self._at[batch_rows] = _SIZES + 1 + _BATCH * len(self._at)
            words[at] = batch_rows
        floats[at + 1] = batch.share
        floats[at + 2] = batch.compute_ns
        words[at + 3] = batch.input_ns
        words[at + 4] = batch.output_ns
        words[_SIZES] = len(self._at)
        self._write(_HISTOGRAMS + 1 + _COUNTS, self.queue, queue_ns)
        self._write(_HISTOGRAMS + 2 * (1 + _COUNTS), self.compute, compute_ns)
        # The request counts as soon as this is written, so it is written last.
        self._write(_HISTOGRAMS, self.request, total_ns)

    def count_tokens(self, counts: TokenCounts) -> None:
        """Count the tokens of a request, as `ModelMetrics.count_tokens` does."""
        super().count_tokens(counts)
        found = self.tokens
        self._words[_TOKENS] = found.tokens
        self._words[_TOKENS + 1] = found.padded
        for bucket in counts.shares:
            self._floats[_TOKEN_BATCHES + bucket] = found.batches[bucket]
        self._write(_TOKENIZING, found.tokenizing, counts.tokenizing_ns)

    def _write(self, at: int, histogram: Histogram, ns: int) -> None:
        bucket = bisect_left(BOUNDS_NS, ns)
        self._words[at] = histogram.sum_ns
        self._words[at + 1 + bucket] = histogram.counts[bucket]

    def failure(self, row: Row, total_ns: int = 0) -> None:
        """Count a failure, as `ModelMetrics.failure` does."""
        super().failure(row, total_ns)
        reason, outcome = row.reason, row.outcome
        self._words[3] = self.failure_ns
        self._words[_FAILURES + _REASONS.index(reason)] = self.failures[reason]
        at = _FAILED + _OUTCOMES.index(outcome) * (1 + _COUNTS)
        self._write(at, self.failed[outcome], total_ns)

    def show_gauges(self, awaiting: int) -> None:
        """Publish the requests in flight; `awaiting` of them have not begun."""
        self._words[0] = max(0, self.pending)
        self._words[1] = awaiting


class CounterSegment:
    """The numbers of one worker: it writes them, its supervisor reads them."""

    def __init__(self, memory: SharedMemory, keyless: str = "") -> None:
        self.memory = memory
        self._words = memory.view[:SEGMENT_SIZE].cast("Q")
        self._floats = memory.view[:SEGMENT_SIZE].cast("d")
        self._metrics: dict[int, SharedMetrics] = {}
        self.answers = Answers(memory.view[_ANSWERS_AT:_OWN_AT], keyless)

    @classmethod
    def create(cls) -> CounterSegment:
        return cls(SharedMemory.create("counters", SEGMENT_SIZE))

    @classmethod
    def attach(cls, fd: int, keyless: str = "") -> CounterSegment:
        """Map the segment in the worker. `keyless` is that of `Answers`."""
        memory = SharedMemory.attach(fd, SEGMENT_SIZE)
        memory.detach_fd()
        return cls(memory, keyless)

    def _block(self, block: int) -> tuple[memoryview[int], memoryview[float]]:
        first = (_BLOCKS_AT + block * BLOCK_SIZE) // 8
        end = first + BLOCK_SIZE // 8
        return self._words[first:end], self._floats[first:end]

    # -- the worker

    def metrics(self, block: int, name: str, version: str) -> SharedMetrics:
        """Return the counters of a block. Each call returns the same object."""
        found = self._metrics.get(block)
        if found is None:
            found = SharedMetrics(name, version, *self._block(block))
            self._metrics[block] = found
        return found

    def show_device(self, number: int, in_flight: int) -> None:
        if number < MOST_DEVICES:
            self._words[number] = in_flight

    def show_own(self, own: OwnNumbers) -> None:
        for number, value in enumerate(own):
            self._words[_OWN_AT // 8 + number] = value

    # -- the supervisor

    def own(self) -> OwnNumbers:
        """Return the numbers that the worker last reported about itself."""
        at = _OWN_AT // 8
        return OwnNumbers(*self._words[at : at + 3].tolist())

    def on_device(self, number: int) -> int:
        """Return requests of the worker that are in flight on a device."""
        return self._words[number] if number < MOST_DEVICES else 0

    def read(self, block: int, name: str, version: str) -> ModelMetrics:
        """Return the present counters of a block."""
        words, floats = self._block(block)
        found = ModelMetrics(name, version)
        found.pending = words[0]
        found.awaiting = words[1]
        found.inference_count = words[2]
        found.failure_ns = words[3]
        found.last_inference = floats[4]
        for number, reason in enumerate(_REASONS):
            found.failures[reason] = words[_FAILURES + number]
        at = _HISTOGRAMS
        failed = (found.failed[outcome] for outcome in _OUTCOMES)
        for histogram in (found.request, found.queue, found.compute, *failed):
            histogram.sum_ns = words[at]
            histogram.counts = words[at + 1 : at + 1 + _COUNTS].tolist()
            at += 1 + _COUNTS
        found.successes = found.request.count
        tokens = found.tokens
        tokens.tokens, tokens.padded = words[_TOKENS], words[_TOKENS + 1]
        tokens.tokenizing.sum_ns = words[_TOKENIZING]
        counts = words[_TOKENIZING + 1 : _TOKEN_BATCHES]
        tokens.tokenizing.counts = counts.tolist()
        tokens.batches = list(floats[_TOKEN_BATCHES:_SIZES])
        for size in range(words[_SIZES]):
            at = _SIZES + 1 + _BATCH * size
            batch = found.batches[words[at]] = BatchMetrics()
            batch.share, batch.compute_ns = floats[at + 1], floats[at + 2]
            batch.input_ns, batch.output_ns = words[at + 3], words[at + 4]
        return found

    def close(self) -> None:
        """Release the memory, after the last count in it."""
        self._metrics.clear()
        self.answers.close()
        self._words.release()
        self._floats.release()
        self.memory.close()

    def __repr__(self) -> str:
        return f"<CounterSegment of {len(self._metrics)} models>"
