"""Two processes over one ring: what is published is whole, in order and not lost.

This defends the ordering claim at the head of `engine/transport/ring_buffer.py`. The
producer fills every slot with a pattern that depends on its number and publishes in
bursts; the consumer checks every byte, holds several slots at a time, puts some back
and reads them again. Bounded in count, not in time.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from engine.transport.shared_memory import SharedMemory

ROOT = Path(__file__).parents[2]
MESSAGES = 60_000
WORDS = 24

PRODUCER = """
import random, sys
import numpy as np
from engine.transport.ring_buffer import CONTROL_SIZE, RingCounters
from engine.transport.shared_memory import SharedMemory

fd, slots, messages, words, seed = map(int, sys.argv[1:])
memory = SharedMemory.attach(fd, CONTROL_SIZE + slots * words * 8)
ring = RingCounters(memory.view[:CONTROL_SIZE], slots)
data = np.frombuffer(memory.view, np.uint64, slots * words, CONTROL_SIZE)
table = data.reshape(slots, words)
rng = random.Random(seed)
number = 0
while number < messages:
    burst = min(rng.randint(1, slots), messages - number, ring.write_available)
    for ahead in range(burst):
        table[(ring.written + ahead) % slots] = np.arange(number, number + words)
        number += 1
    if burst:
        ring.write_complete(burst)
"""


@pytest.mark.parametrize(
    "slots", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.stress) for n in (64, 1000))]
)
def test_every_slot_is_whole_and_in_order(slots: int) -> None:
    size = CONTROL_SIZE + slots * WORDS * 8
    with SharedMemory.create("stress", size) as memory:
        # A ring of one slot hands over at every message: fewer are enough.
        messages = MESSAGES if slots > 8 else MESSAGES // 20
        numbers = [memory.fd, slots, messages, WORDS, slots]
        producer = subprocess.Popen(
            [sys.executable, "-c", PRODUCER, *map(str, numbers)],
            pass_fds=[memory.fd],
            cwd=ROOT,
        )
        with producer:
            consume(memory, slots, messages)
            assert producer.wait(60) == 0


def consume(memory: SharedMemory, slots: int, messages: int) -> None:
    ring = RingCounters(memory.view[:CONTROL_SIZE], slots)
    table = np.frombuffer(memory.view, np.uint64, slots * WORDS, CONTROL_SIZE)
    table = table.reshape(slots, WORDS)
    rng = random.Random(7)
    pattern = np.arange(WORDS, dtype=np.uint64)
    expected = 0
    while expected < messages:
        held: list[int] = []
        while len(held) < rng.randint(1, 8) and (slot := ring.try_read_lock()) >= 0:
            held.append(slot)
        if held and rng.random() < 0.1:
            ring.read_reset()
            continue
        for slot in held:
            assert np.array_equal(table[slot], pattern + np.uint64(expected))
            expected += 1
        if held:
            ring.read_complete(len(held))
    assert ring.try_read_lock() == -1
    del table
