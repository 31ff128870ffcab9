"""Regions of shared memory: what is refused, how long they stay, segments cut short.

Covers: app/regions.py.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest

from app.codec import ModelCodec
from app.codec.memory_check import SHARED_AT_ONCE, TakesLong, reserving
from app.codec.messages import Body
from app.errors import InvalidRequest, UnknownRegion
from app.limits import DEFAULT_LIMITS
from app.regions import Extent
from app.spec import ModelSpec, TensorSpec
from engine import Tensor
from popgate_triton import shared_memory
from popgate_triton.shared_memory import RegionStatus, RegionTable
from tests.app.api.test_server_metrics import value
from tests.app.served import ServedGateway
from tests.support import until

SIZE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seg").write_bytes(bytes(range(256)) * (SIZE // 256))
    return tmp_path


@pytest.fixture
def table(folder: Path) -> Iterator[RegionTable]:
    made = RegionTable(max_bytes=2 * SIZE, folder=folder)
    yield made
    made.unregister()


def region(name: str = "r", key: str = "seg", offset: int = 0, size: int = SIZE) -> Any:
    return RegionStatus(name, key, offset, size)


def read(table: RegionTable, place: Extent) -> bytes:
    return table.find(place.region).read(place.offset, place.byte_size)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def tensor(values: list[int]) -> Tensor:
    return Tensor.from_numpy(np.array(values, np.uint8))


@pytest.mark.parametrize("key", ["seg", "/seg", "///seg"])
def test_reads_what_is_there(table: RegionTable, key: str) -> None:
    table.register(region(key=key, offset=10, size=100))
    assert read(table, Extent("r", 0, 3)) == b"\x0a\x0b\x0c"
    assert read(table, Extent("r", 97, 3)) == bytes([107, 108, 109])
    assert read(table, Extent("r", 100, 0)) == b""
    assert table.status() == table.status("r") == [region(key=key, offset=10, size=100)]


def test_writes_what_is_held(table: RegionTable, folder: Path) -> None:
    table.register(region(offset=100, size=10))
    held = table.hold({"y": Extent("r", 2, 5)})
    assert "y" in held
    assert "x" not in held
    assert held.put("y", tensor([1, 2, 3])) == {
        "shared_memory_region": "r",
        "shared_memory_offset": 2,
        "shared_memory_byte_size": 3,
    }
    assert (folder / "seg").read_bytes()[101:106] == bytes([101, 1, 2, 3, 105])
    with pytest.raises(InvalidRequest, match="should be at least 6 bytes to hold"):
        held.put("y", tensor([0] * 6))
    held.release()
    held.release()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Extent("r", SIZE, 1), "Invalid offset for shared memory region: 'r'"),
        (Extent("r", 1 << 70, 0), "Invalid offset for shared memory region"),
        (Extent("r", 1, SIZE), "Invalid offset \\+ byte size for shared memory region"),
        (Extent("r", 0, 1 << 70), "Invalid offset \\+ byte size"),
    ],
)
def test_places_outside(table: RegionTable, place: Extent, text: str) -> None:
    table.register(region())
    with pytest.raises(InvalidRequest, match=text):
        read(table, place)
    with pytest.raises(InvalidRequest, match=text):
        table.hold({"y": place})


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (region(key="none"), "Unable to open shared memory region: 'none'"),
        (region(key=""), "region 'r' - invalid shm key ''"),
        (region(key="///"), "region 'r' - invalid shm key '///'"),
        (region(key=".."), "Unable to open"),
        (region(key=".hidden"), "Unable to open"),
        (region(key="a/b"), "Unable to open"),
        (region(key="/../seg"), "Unable to open"),
        (region(key="seg\0"), "Unable to open"),
        (region(key="k" * 300), "Unable to open"),
        (region(key="link"), "Unable to open"),
        (region(key="folder"), "Unable to open"),
        (region(key="pipe"), "Unable to open"),
        (region(key="sem.x"), "contains the reserved prefix 'sem.'"),
        (
            region(key="///triton_python_backend_shm_region_1"),
            "with key '///triton_python_backend_shm_region_1' as the key contains the",
        ),
        (region(size=SIZE + 1), "failed to register shared memory region 'r': invalid"),
        (region(offset=1), "failed to register shared memory region 'r': invalid"),
        (region(size=0), "failed to register shared memory region 'r': invalid"),
        (region(offset=(1 << 63) - 1), "Integer overflow detected: byte_size"),
        (region(size=2 * SIZE + 1), "8192 of 8192 bytes are left"),
        (region(name=""), "1 to 255 printable"),
        (region(name="n" * 256), "1 to 255 printable"),
        (region(name="a\n"), "1 to 255 printable"),
    ],
)
def test_refused(table: RegionTable, folder: Path, wanted: Any, text: str) -> None:
    (folder / "link").symlink_to(folder / "seg")
    (folder / "folder").mkdir()
    (folder / ".hidden").write_bytes(bytes(SIZE))
    os.mkfifo(folder / "pipe")
    before = files()
    with pytest.raises(InvalidRequest, match=text):
        table.register(wanted)
    assert table.status() == []
    assert files() == before


def test_names_and_bytes_are_bounded(
    table: RegionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.register(region())
    with pytest.raises(InvalidRequest, match="'r' already in manager"):
        table.register(region())
    table.register(region("s"))
    with pytest.raises(InvalidRequest, match="0 of 8192 bytes are left"):
        table.register(region("t", size=1))
    table.unregister("s")
    table.register(region("t", size=1))
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    with pytest.raises(InvalidRequest, match="2 shared memory regions"):
        table.register(region("u", size=1))
    with pytest.raises(UnknownRegion, match="Unable to find shared memory region: 's'"):
        read(table, Extent("s", 0, 1))
    with pytest.raises(UnknownRegion, match="find system shared memory region: 's'"):
        table.status("s")


@pytest.mark.parametrize("prefix", ["se", "/se"])
def test_keys_may_need_a_prefix(folder: Path, prefix: str) -> None:
    table = RegionTable(max_bytes=2 * SIZE, folder=folder, prefix=prefix)
    table.register(region())
    (folder / "other").write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="keys must begin with 'se'"):
        table.register(region("o", "other", 0, 1))
    table.unregister()


def test_a_segment_that_is_cut_short(table: RegionTable, folder: Path) -> None:
    table.register(region())
    held = table.hold({"y": Extent("r", SIZE - 8, 8)})
    os.truncate(folder / "seg", 16)
    assert len(read(table, Extent("r", 0, 16))) == 16
    with pytest.raises(
        InvalidRequest, match="was made shorter after it was registered: 1 of 2"
    ):
        read(table, Extent("r", 15, 2))
    with pytest.raises(InvalidRequest, match="was made shorter"):
        held.put("y", tensor([1]))
    held.release()
    assert (folder / "seg").stat().st_size == 16


def test_a_segment_that_may_only_be_read(
    table: RegionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def may_only_read(path: Any, flags: int, *more: Any) -> int:  # even for root
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "no")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", may_only_read)
    table.register(region())
    assert read(table, Extent("r", 1, 1)) == b"\x01"
    held = table.hold({"y": Extent("r", 0, 8)})
    with pytest.raises(InvalidRequest, match="is read-only for the server"):
        held.put("y", tensor([1]))
    held.release()


@pytest.mark.parametrize("name", ["r", None])
def test_stays_while_a_request_uses_it(
    table: RegionTable, folder: Path, name: str | None
) -> None:
    before = files()
    table.register(region())
    first = table.hold(
        {"y": Extent("r", 0, 8), "z": Extent("r", 8, 8)}, [table.find("r")] * 2
    )
    table.unregister(name)
    assert table.status() == [region()]
    second = table.hold(read=[table.find("r")])
    with pytest.raises(InvalidRequest, match="already in manager"):
        table.register(region())
    first.put("y", tensor([7]))
    first.release()
    assert read(table, Extent("r", 0, 1)) == b"\7"
    second.release()
    assert table.status() == []
    with pytest.raises(UnknownRegion):
        read(table, Extent("r", 0, 1))
    assert files() == before
    table.register(region())


def test_what_was_read_before_a_region_ended_is_kept(table: RegionTable) -> None:
    """As where a large document is decoded in a thread meanwhile."""
    table.register(region())
    was = table.find("r")
    assert read(table, Extent("r", 0, 1)) == b"\0"
    table.unregister()
    table.hold(read=[was]).release()


def test_a_region_belongs_to_the_key_that_registered_it(table: RegionTable) -> None:
    table.register(region("r"), "shop")
    table.register(region("s"), "other")
    place = {"y": Extent("r", 0, 8)}
    for owner in ("other", ""):
        with pytest.raises(UnknownRegion):
            table.hold(place, owner=owner)
        with pytest.raises(UnknownRegion):
            table.hold(read=[table.find("r")], owner=owner)
        with pytest.raises(UnknownRegion):
            table.status("r", owner)
        table.unregister("r", owner)
    table.unregister(owner="other")
    assert table.status(owner="other") == []
    assert table.status(owner="shop") == [region("r")]
    table.hold(place, [table.find("r")], owner="shop").release()
    # The name is another key's by now: what was read before is not.
    was = table.find("r")
    table.unregister("r", "shop")
    table.register(region("r"), "other")
    with pytest.raises(UnknownRegion):
        table.hold(read=[was], owner="other")


def test_a_lease_does_not_end_under_a_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    table = RegionTable(max_bytes=2 * SIZE, folder=folder, lease=60)
    table.register(region())
    held = table.hold(read=[table.find("r")])
    now[0] += 100
    assert len(table.status()) == 1
    held.release()
    assert len(table.status()) == 1
    now[0] += 100
    assert table.status() == []


def test_holding_is_all_or_nothing(table: RegionTable) -> None:
    before = files()
    table.register(region())
    with pytest.raises(UnknownRegion):
        table.hold({"y": Extent("r", 0, 8), "z": Extent("none", 0, 8)})
    table.unregister()
    assert files() == before


def test_leases_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    calls: list[tuple[float, Callable[[], None]]] = []
    table = RegionTable(
        max_bytes=2 * SIZE,
        folder=folder,
        lease=60,
        later=lambda seconds, call: calls.append((seconds, call)),
    )
    before = files()
    table.register(region("a"))
    table.register(region("b"))
    assert len(calls) == 1
    now[0] += 50
    read(table, Extent("b", 0, 1))
    calls.pop()[1]()
    assert len(table.status()) == 2
    now[0] += 20
    calls.pop()[1]()
    assert [status.name for status in table.status()] == ["b"]
    now[0] += 100
    calls.pop()[1]()
    assert table.status() == []
    assert calls == []
    assert files() == before


GRAPH = """
<ir_version: 10, opset_import: ["": 20]>
double (float[n] x) => (float[n] y) { y = Add(x, x) }"""


@pytest.fixture
def segment() -> Iterator[Path]:
    """A segment of 8 MiB, full of the number 1."""
    path = Path("/dev/shm", f"popgate-tests-{os.getpid()}")
    path.write_bytes(np.ones(2 << 20, np.float32).tobytes())
    yield path
    path.unlink()


def test_large_tensors_are_read_and_written_beside_the_event_loop(
    tmp_path: Path, segment: Path
) -> None:
    """They count as the memory that they take, of which requests say nothing."""
    (tmp_path / "double" / "1").mkdir(parents=True)
    graph = onnx.parser.parse_model(GRAPH)
    onnx.save(graph, tmp_path / "double" / "1" / "model.onnx")
    options = ("--allow-shared-memory", "--transfer-memory", "6MiB", "--devices")
    with ServedGateway(tmp_path, *options, "cpu:1") as gateway:
        gateway.wait_ready()
        whole = {"key": segment.name, "offset": 0, "byte_size": 8 << 20}
        url = "/v2/systemsharedmemory/region/all/register"
        assert gateway.client.post(url, json=whole).status_code == 200

        def ask(size: int) -> httpx.Response:
            place = {"shared_memory_region": "all", "shared_memory_byte_size": size}
            into = {**place, "shared_memory_offset": 4 << 20}
            given = {"name": "x", "datatype": "FP32", "shape": [size // 4]}
            body = {
                "inputs": [{**given, "parameters": place}],
                "outputs": [{"name": "y", "parameters": into}],
            }
            return gateway.client.post("/v2/models/double/infer", json=body)

        for size in (4096, 3 << 20):
            answer = ask(size)
            assert answer.status_code == 200, answer.text
            written = np.fromfile(segment, np.float32, size // 4, offset=4 << 20)
            assert (written == 2.0).all()
        refused = ask(8 << 20)
        assert refused.status_code == 503
        assert refused.json()["code"] == "transfer_memory_full"
        assert ask(4096).status_code == 200
        until(lambda: value(gateway, "popgate_transfer_memory_bytes") == 0)


def test_a_document_with_a_large_place_is_read_in_a_thread(folder: Path) -> None:
    (folder / "large").write_bytes(bytes(SHARED_AT_ONCE + 1))
    big: Any = RegionTable(max_bytes=2 * SHARED_AT_ONCE, folder=folder)
    big.register(region("big", "large", size=SHARED_AT_ONCE + 1))
    spec = ModelSpec("m", "1", (TensorSpec.make("x", "UINT8", (-1,)),), ())
    codec = ModelCodec(spec, DEFAULT_LIMITS, big)

    def document(size: int) -> Body:
        place = {"shared_memory_region": "big", "shared_memory_byte_size": size}
        given = {"name": "x", "datatype": "UINT8", "shape": [size], "parameters": place}
        return [json.dumps({"inputs": [given]}).encode()]

    def decode(size: int) -> int:
        found = codec.decode(b"application/json", None, None, document(size))
        return found.inputs["x"].nbytes

    assert decode(SHARED_AT_ONCE) == SHARED_AT_ONCE
    with pytest.raises(TakesLong):
        decode(SHARED_AT_ONCE + 1)
    taken: list[int] = []
    with reserving(taken.append):
        assert decode(SHARED_AT_ONCE + 1) == SHARED_AT_ONCE + 1
    assert sum(taken) >= SHARED_AT_ONCE + 1
    big.unregister()
