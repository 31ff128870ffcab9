"""Keys at work: rates, what is in flight, and a file that changes."""

from __future__ import annotations

import hmac
import os
import select
from collections import Counter
from collections.abc import Sequence
from hmac import compare_digest
from pathlib import Path

import pytest

from app.config.config_keys import KeyProblem
from app.config.keys import KeyConfig, digest_of
from app.errors import HttpError
from app.serving.keys import MOST_LANES, Key, Keys, KeyTable, Lanes, given_key
from tests.app.served import ServedGateway
from tests.app.serving.test_scheduling import Asking, in_flight
from tests.engine import models
from tests.support import FOR_EVER, until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(key: Key) -> HttpError:
    with pytest.raises(HttpError) as caught:
        key.enter()
    return caught.value


def test_a_rate_is_kept_and_says_when_to_come_again() -> None:
    clock = Clock()
    config = KeyConfig("a", digest_of(b"a"), requests_per_second=4)
    key = Key(config, clock)
    for _ in range(4):  # what one second may have, at once
        key.enter()
    error = refusal(key)
    assert (error.status, error.code) == (429, "key_rate")
    assert (b"retry-after", b"1") in error.headers
    assert "limited to 4 requests/s" in str(error)
    clock.now += 0.25
    key.enter()
    refusal(key)
    clock.now += 100
    for _ in range(4):
        key.count_request()
    refusal(key)
    assert key.in_flight == 5  # those that were refused do not count


def test_less_than_one_a_second() -> None:
    clock = Clock()
    key = Key(KeyConfig("a", digest_of(b"a"), requests_per_second=0.1), clock)
    key.count_request()
    error = refusal(key)
    assert (b"retry-after", b"10") in error.headers
    clock.now += 10
    key.count_request()


def test_so_many_in_flight() -> None:
    key = Key(KeyConfig("a", digest_of(b"a"), concurrent=2))
    key.enter()
    key.enter()
    error = refusal(key)
    assert (error.status, error.code) == (429, "key_concurrency")
    assert "is limited to 2 requests in flight" in str(error)
    key.leave()
    key.enter()
    assert repr(key) == "<Key a, 2 in flight>"


def test_an_empty_list_of_models_opens_none() -> None:
    key = Key(KeyConfig("a", digest_of(b"a"), models=()))
    assert not any(map(key.allows_model, ("", "m", "*")))
    assert Key(KeyConfig("a", digest_of(b"a"))).allows_model("m")


def test_an_empty_key_is_none() -> None:
    assert KeyTable([Key(KeyConfig("a", digest_of(b"")))]).find(b"") is None


def test_a_key_is_found_by_all_that_it_is() -> None:
    keys = [Key(KeyConfig(n, digest_of(n.encode()))) for n in ("a", "b")]
    table = KeyTable(keys)
    for _ in range(2):  # the second time it is remembered
        assert table.find(b"b") is keys[1]
        assert table.find(b"a") is keys[0]
        for wrong in (b"", b"c", b"a ", b"A", digest_of(b"a"), b"x" * 100_000):
            assert table.find(wrong) is None


def test_every_hash_is_compared_whichever_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    names = [f"key {n}" for n in range(5)]
    table = KeyTable(Key(KeyConfig(n, digest_of(n.encode()))) for n in names)
    for given in ("key 0", "key 4", "wrong"):
        assert (table.find(given.encode()) is None) == (given == "wrong")
        asked = digest_of(given.encode())
        assert compared == [(digest_of(n.encode()), asked) for n in names]
        compared.clear()


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({b"x-api-key": b"k"}, b"k"),
        ({b"x-api-key": b"k", b"authorization": b"Bearer other"}, b"k"),
        ({b"authorization": b"bearer  k "}, b"k"),
        ({b"authorization": b"Basic dTprOjE="}, b"k:1"),
        ({b"authorization": b"Basic ?"}, None),
        ({b"authorization": b"Digest k"}, None),
        ({b"authorization": b"k"}, None),
        ({}, None),
    ],
)
def test_where_a_key_stands(headers: dict[bytes, bytes], key: bytes | None) -> None:
    assert given_key(headers) == key


def write(path: Path, **keys: str) -> None:
    text = "".join(
        f'[[key]]\nname = "{name}"\nsha256 = "{digest_of(secret.encode()).hex()}"\n'
        for name, secret in keys.items()
    )
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


def test_a_changed_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    write(path, a="one", b="two")
    keys = Keys(path, "root")
    a = keys.table.find(b"one")
    assert a is not None
    a.enter()
    assert keys.read_again() is None  # nothing has changed

    write(path, a="three")
    changed = keys.read_again()
    assert changed is not None
    keys.take_over(changed)
    assert keys.table.find(b"one") is None
    assert keys.table.find(b"two") is None
    # What it has in flight goes on, and counts.
    assert keys.table.find(b"three") is a
    assert a.in_flight == 1
    assert keys.table.find(b"root") is not None

    assert repr(keys) == f"<Keys {path}, <KeyTable ['a', '(--api-key)']>>"
    write(path, b="two", c="one")
    changed = keys.read_again()
    assert changed is not None
    with caplog.at_level("INFO"):
        keys.take_over(changed)
    assert f"reloaded 2 keys from {path}; added b, c; removed a" in caplog.text


def test_what_cannot_be_read_again_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"
    write(path, a="one")
    keys = Keys(path)
    for wrong in ("[[key]]\nnam = 1", "", None):
        path.unlink()
        if wrong is not None:
            path.write_text(wrong)
        for _ in range(3):  # which is told once
            assert keys.read_again() is None
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "did you mean name" in caplog.messages[0]
    assert "the file is empty" in caplog.messages[1]
    said = "keys were not reloaded, the former ones stay in use"
    gone = f"{said}: {path}: No such file or directory"
    assert caplog.messages[2] == gone
    assert keys.table.find(b"one") is not None


def test_a_key_by_certificate_needs_certificates_at_a_reload_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next start would refuse a file that the reload has accepted."""
    path = tmp_path / "keys.toml"
    write(path, a="one")
    keys, asking = Keys(path, has_certificates=False), Keys(path)
    path.write_text('[[key]]\nname = "a"\ncertificate = "CN=a"\n')
    assert keys.read_again() is None
    assert "key 'a' requires a client certificate; set --tls-client-ca" in caplog.text
    assert asking.read_again() is not None
    with pytest.raises(KeyProblem, match="requires a client certificate"):
        Keys(path, has_certificates=False)


def test_a_file_that_can_be_read_after_all(tmp_path: Path) -> None:
    """As one that got its owner after its content: nothing else of it changes."""
    path = tmp_path / "keys.toml"
    write(path, a="one")
    keys = Keys(path)
    right = path.read_text()
    path.write_text("?" * len(right))
    stamp = path.stat().st_mtime_ns
    assert keys.read_again() is None
    path.write_text(right.replace('"a"', '"b"'))
    os.utime(path, ns=(stamp, stamp))
    changed = keys.read_again()
    assert changed is not None
    assert changed.key[0].name == "b"
    assert keys.read_again() is None


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with pytest.raises(OSError, match="No such file"):
        Keys(path)
    path.write_text("anonymous = 1")
    with pytest.raises(KeyProblem, match="anonymous must be a list"):
        Keys(path)


def test_keys_come_and_go_while_models_load(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "waits" / "1"
    folder.mkdir(parents=True)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (folder / "model.py").write_text(
        "class Waits:\n"
        "    inputs = {'x': 'FP32[1]'}\n"
        "    outputs = {'y': 'FP32[1]'}\n"
        "    def load(self, context):\n"
        f"        open({str(gate)!r}).read()\n"
        "    def __call__(self, x):\n"
        "        return x\n"
    )
    path = tmp_path / "keys.toml"
    write(path, a="one")
    options = ("--keys", str(path), "--load-threads", "1", "--allow-python")
    with ServedGateway(tmp_path / "models", *options) as gateway:

        def status(key: str) -> int:
            headers = {"x-api-key": key}
            return gateway.client.get("/v1/models", headers=headers).status_code

        with gate.open("w"):  # from here on it loads
            assert status("one") == 200
            write(path, a="two")
            until(lambda: status("one") == 401)
            assert status("two") == 200
            assert gateway.client.get("/v1/health/startup").status_code == 503


def entry(name: str, weight: int) -> str:
    digest = digest_of(name.encode()).hex()
    return f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\nweight = {weight}\n'


def test_busy_keys_of_one_weight_have_lanes_of_their_own() -> None:
    def config(name: str, weight: int | None = 2) -> KeyConfig:
        return KeyConfig(name, digest_of(name.encode()), weight=weight)

    lanes = Lanes()
    keys = [Key(config(f"{n}"), lanes=lanes) for n in range(3 * MOST_LANES)]
    for key in keys:
        for _ in range(2):  # while it has something in flight, it stays there
            key.enter()
    assert Counter(key.lane for key in keys) == dict.fromkeys(range(MOST_LANES), 3)
    other = Key(config("other", 5), lanes=lanes)
    other.enter()
    assert other.lane == 0
    for key in keys:
        key.leave()
    keys[3].leave()
    keys[3].enter()
    assert keys[3].lane == 3
    for key in keys:
        key.leave()
    keys[-1].enter()
    keys[-2].enter()
    assert [keys[-1].lane, keys[-2].lane] == [0, 1]
    keys[-1].set_up(config("again", 5))
    assert (keys[-1].weight, keys[-1].lane) == (5, 1)
    keys[-1].set_up(config("again", None))
    keys[-2].leave()
    other.leave()
    keys[-1].leave()
    assert repr(lanes) == f"<Lanes {dict.fromkeys((2, 5), [0] * MOST_LANES)}>"


def test_a_key_has_one_lane_in_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    weights = {"a": 2, "b": 3, "c": 2, "d": 2}
    path.write_text("".join(entry(name, weights[name]) for name in weights))
    one, other = Keys(path, shared=True), Keys(path, shared=True)
    for keys, busy in ((one, "abcd"), (other, "dcba")):
        found = {key.config.name: key for key in keys.table.keys}
        for name in busy:
            found[name].enter()
        assert {name: key.lane for name, key in found.items()} == {
            "a": 0,
            "b": 0,
            "c": 1,
            "d": 2,
        }
    path.write_text("".join(entry(name, 2) for name in "bd"))
    config = one.read_again()
    assert config is not None
    one.take_over(config)
    assert [key.lane for key in one.table.keys] == [0, 1]
    for key in one.table.keys:
        key.leave()
    assert repr(Lanes(3)) == "<Lanes 3>"


def answered(waiting: Sequence[Asking]) -> str:
    """Return what was answered although the device is busy."""
    found, _, _ = select.select([one.socket for one in waiting], [], [], 0)
    answers = [one.read() for one in waiting if one.socket in found]
    return f"{len(answers)} answers, such as {answers[:2]}"


def test_a_busy_device_is_shared_by_weight(tmp_path: Path) -> None:
    """In the order in which a backlog is served: of keys of weights 3:1:1, so many,
    also where one of those of equal weight asks much more than the other."""
    models.slow(tmp_path / "slow.popef")
    keys = tmp_path / "keys.toml"
    keys.write_text(entry("heavy", 6) + entry("light", 2) + entry("eager", 2))
    options = ["--keys", str(keys), "--devices", "cpu:1", "--log-level", "debug"]
    options += ["--request-timeout", "600"]  # a busy machine asks for a minute
    with ServedGateway(tmp_path, *options, POPGATE_API_KEY="root") as gateway:
        gateway.wait_ready().client.headers["x-api-key"] = "root"

        def ask(key: str, count: int, name: str = "") -> Asking:
            body = {"inputs": {"count": count}}
            return Asking(gateway, "slow", body, x_api_key=key, x_request_id=name)

        # The first of each waits with all others, and has their lines opened. It is
        # short, so that no key begins with more of the device's time than another.
        first = ask("root", FOR_EVER)
        until(lambda: in_flight(gateway) == 1)
        firsts = [ask(key, 200, f"{key}-") for key in ("light", "eager", "heavy")]
        until(lambda: in_flight(gateway) == 4)
        first.leave()
        assert {one.read()[0] for one in firsts} == {200}
        until(lambda: sum("is a line of weight" in a for a in gateway.lines) == 3)
        first = ask("root", FOR_EVER)
        until(lambda: in_flight(gateway) == 1)
        # Lanes are taken in turns, so that each has its own.
        waiting = [
            # Long enough that what else the machine does hardly shows.
            ask(key, 200, f"{key}-{n}{i}")
            for n in range(40)
            for i, key in enumerate(
                ("light", "eager", "heavy", "eager")[: 4 if n < 20 else 3]
            )
        ]
        try:
            until(lambda: in_flight(gateway) == len(waiting) + 1)
        except AssertionError:
            raise AssertionError(answered(waiting)) from None
        first.leave()
        assert {one.read()[0] for one in waiting} == {200}
        answer = gateway.client.get("/v1/requests?limit=200").json()
    # Newest first. From the first of each key to the last heavy one, heavy ones have
    # three fifths of the time. On a busy machine equal requests take many times as long
    # as others, so the keys have equal shares of the time, and not of the requests, and
    # these differ by the longest requests. What shares are exactly, test_fair_queue.py
    # says.
    order = [
        (one["id"].partition("-")[0], one["phases"]["compute"])
        for one in reversed(answer["answered"])
    ]
    names = [key for key, _ in order]
    last = len(names) - 1 - names[::-1].index("heavy")
    taken = {key: [t for k, t in order[: last + 1] if k == key] for key in set(names)}
    for key in ("light", "eager"):
        longest = max(taken["heavy"]) / 3 + max(taken[key])
        assert abs(sum(taken["heavy"]) / 3 - sum(taken[key])) <= longest, order
