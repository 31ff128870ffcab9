"""Shares of keys with weights, by the time of a device over all of its models."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from app.config.keys import digest_of
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import WAIT, until

#: Steps of `models.slow` in a small request: enough for the device to be what clients
#: wait for. Otherwise a client with short requests may have none waiting.
UNIT = 150


@dataclass(frozen=True, slots=True)
class User:
    """A key, the model that it asks, the steps of each request, and its clients."""

    key: str
    model: str
    steps: int
    clients: int = 6


def weighing(**weights: int) -> str:
    return "\n".join(
        f'[[key]]\nname = "{name}"\nsha256 = "{digest_of(name.encode()).hex()}"\n'
        f"weight = {weight}\n"
        for name, weight in weights.items()
    )


def comes_to(
    served: ServedGateway, users: list[User], wanted: float, most: int
) -> None:
    """Returns when the first user has had `wanted` times the work of the second, give
    or take a tenth, for so many steps that they had together.

    On a machine that is busy with other things clients may be too slow to have
    something waiting at all times, which shares are about.
    """
    done: Counter[str] = Counter()
    ends = threading.Event()
    lock = threading.Lock()

    def ask(user: User) -> None:
        body = {"inputs": {"count": user.steps}}
        headers = {"x-api-key": user.key, "accept": "application/msgpack"}
        with httpx.Client(base_url=served.url, headers=headers, timeout=WAIT) as client:
            while not ends.is_set():
                answer = client.post(f"/v1/models/{user.model}/infer", json=body)
                assert answer.status_code == 200, answer.text
                with lock:
                    done[user.key] += user.steps

    seen: list[float] = []
    before: Counter[str] = Counter()

    def is_so() -> bool:
        nonlocal before
        with lock:
            now = done.copy()
        moved = now - before
        if moved.total() < most:
            return False
        before = now
        first, second = (moved[user.key] for user in users)
        seen.append(first / max(1, second))
        return 0.9 < seen[-1] / wanted < 1.1

    threads = [
        threading.Thread(target=ask, args=(user,))
        for user in users
        for _ in range(user.clients)
    ]
    for thread in threads:
        thread.start()
    try:
        until(is_so, seen)
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    add(root, "x", models.slow)
    add(root, "y", models.slow)
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(weighing(heavy=3, light=1, one=2, other=2))
    options = ["--keys", str(keys), "--devices", "cpu:1", "--workers", request.param]
    with ServedGateway(root, *options) as gateway:
        yield gateway.wait_ready()


ONE_MODEL = [User("heavy", "x", UNIT), User("light", "x", UNIT)], 3.0
TWO_MODELS = [User("heavy", "x", UNIT), User("light", "y", 4 * UNIT)], 3.0
HEAVY_IS_SLOW = [User("heavy", "x", 4 * UNIT), User("light", "y", UNIT)], 3.0
SIZES = [User("one", "x", UNIT), User("other", "x", 4 * UNIT)], 1.0


# Who shares is the device. With two workers its requests come by two ways.
@pytest.mark.parametrize(
    ("served", "users", "wanted"),
    [
        pytest.param("1", *ONE_MODEL, id="one model"),
        pytest.param("1", *TWO_MODELS, id="two models"),
        pytest.param("1", *HEAVY_IS_SLOW, id="two models, the heavy is slow"),
        pytest.param("1", *SIZES, id="sizes"),
        pytest.param("2", *ONE_MODEL, id="two workers, one model"),
        pytest.param("2", *HEAVY_IS_SLOW, id="two workers, the heavy is slow"),
    ],
    indirect=["served"],
)
def test_work_goes_by_weight(
    served: ServedGateway, users: list[User], wanted: float
) -> None:
    comes_to(served, users, wanted, 120 * UNIT)
