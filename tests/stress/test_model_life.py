"""The life of models under schedules that a seed chooses
(bench/fuzzers/model_life.py).
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from app.repository.model_life import Event, State
from app.serving import table
from bench.fuzzers.model_life import simulate, unreached

#: Compiled code looks at the machine's clock.
pytestmark = pytest.mark.skipif(
    not table.__file__.endswith(".py"), reason="the request path is compiled"
)
SEEDS = 100
#: What seeds have found, each with its cause.
FOUND = {
    2: "an evicted model failed the request that had just waited for its load",
    7: "a request to a starting server waited twice as long as its deadline",
    23: "requests without a version had none when one had failed and another served",
    42: "a load that ended after the shutdown raised a KeyError",
    84: "a model served although it was found at fault before its load had ended",
    191: "requests failed while a version that was on demand was loaded by a request",
    71001206: "a load that began as the server shut down raised a KeyError",
}
#: Only a shutdown interrupts a load, and nothing happens to its version after that.
INTERRUPTED = {
    *product([State.LOADING], [Event.LOAD, Event.OFFER, Event.REQUEST, Event.UNLOAD]),
    *product([State.DRAINING], [Event.LOAD, Event.OFFER, Event.UNLOAD]),
}
#: A change of a model that serves, or has just been found at fault, without memory.
RARE = {(State.READY, Event.NO_MEMORY), (State.FAILED, Event.NO_MEMORY)}


def test_every_request_ends_and_every_model_is_closed() -> None:
    counts: Counter[str] = Counter()
    lived: Counter[tuple[State, Event]] = Counter()
    for seed in range(SEEDS):
        world = simulate(seed)
        assert not world.faults, f"seed {seed}: {world.faults}"
        counts += world.counts
        lived += world.lived
    # What is to happen does happen.
    assert set(unreached(lived)) <= INTERRUPTED | RARE
    for what in ("answered", "EVICT", "CUT_OFF", "shutdown", "jump", "cancel"):
        assert counts[what] > 10, counts
    for error in ("DeadlineExceeded", "QueueFull", "VersionNotReady"):
        assert counts[error] > 10, counts


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_does_not_come_back(seed: int) -> None:
    assert not simulate(seed).faults


def test_a_seed_is_one_schedule() -> None:
    assert simulate(7).log == simulate(7).log
