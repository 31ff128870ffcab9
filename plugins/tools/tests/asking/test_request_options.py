"""What requests of commands carry beside tensors, and answers of several responses.

Covers: plugins/tools/src/popgate_tools/asking/request_options.py,
    plugins/tools/src/popgate_tools/asking/model.py,
    plugins/tools/src/popgate_tools/perf/answers.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from popgate_tools.perf.answers import (
    CHUNKED,
    UNKNOWN,
    ChunkedBody,
    read_head,
    reason_of,
)
from tests.app.cli.calls import Call
from tests.app.served import ServedGateway

COUNT = """
class Count:
    inputs = {"n": "INT32[1]"}
    outputs = {"i": "INT32[1]"}

    def __call__(self, n):
        for i in range(n[0]):
            if n[0] > 100 and i == 2:
                raise ValueError("too many to count")
            yield {"i": [i]}
"""
SUM = """
class Sum:
    inputs = {"x": "FP32[1]", "total": "FP32[1]"}
    outputs = {"y": "FP32[1]", "after": "FP32[1]"}
    def __call__(self, x, total):
        return {"y": x + total, "after": x + total}
"""
SEQUENCE = """
[sequence]
[[sequence.state]]
input = "total"
output = "after"
"""
ECHO = """
class Echo:
    inputs = {"x": "FP32[1]"}
    outputs = {"said": "BYTES[1]"}
    def load(self, context):
        self.context = context
    def __call__(self, x):
        if x[0] < 0:
            raise ValueError("negative numbers are refused")
        return {"said": [str(self.context.parameters[0].get("tone"))]}
"""
STEPS = """
    <ir_version: 10, opset_import: ["": 20]>
    steps (int32[1] n, int32[1] step) => (int32[1] y, bool[1] more)
    <int32[1] one = {1}>
    { y = Add(step, one)
      more = Less(y, n) }"""
RESPONSES = """
[responses]
more = "more"
step = "step"
[warmup]
enabled = false
"""
QUICK = ["--seconds", "0.1", "--warm-up", "0", "--within", "1000"]


def write(root: Path, name: str, text: str, config: str = "") -> None:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (root / name / "config.toml").write_text(config)
    if text.lstrip().startswith("<"):
        onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    else:
        (folder / "model.py").write_text(text)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    write(root, "count", COUNT, "[warmup]\nenabled = false\n")
    write(root, "sum", SUM, SEQUENCE)
    write(root, "echo", ECHO)
    write(root, "steps", STEPS, RESPONSES)
    cache = str(tmp_path_factory.mktemp("cache"))
    with ServedGateway(root, "--allow-python", "--cache-dir", cache) as gateway:
        yield gateway.wait_ready()


@pytest.mark.parametrize(("name", "output"), [("count", "i"), ("steps", "y")])
def test_infer_shows_each_response(
    popgate: Call, served: ServedGateway, tmp_path: Path, name: str, output: str
) -> None:
    at = ["--url", served.url, "--input", "n=[3]"]
    done = popgate("infer", name, *at)
    assert done.code == 0, done.err
    assert done.out.count(f"{output}  INT32[1]") == 3
    assert "3 responses" in done.err
    target = tmp_path / "y.npy"
    assert popgate("infer", name, *at, "-o", f"{output}={target}").code == 0
    saved = [np.load(tmp_path / f"y.{n}.npy").tolist() for n in (1, 2, 3)]
    assert saved in ([[0], [1], [2]], [[1], [2], [3]])


def test_batch_writes_all_responses(
    popgate: Call, served: ServedGateway, tmp_path: Path
) -> None:
    rows, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("[2]\n[0]\n[101]\n")
    done = popgate("batch", "count", "-i", rows, "-o", target, "--url", served.url)
    assert done.code == 1
    found = {d["row"]: d for d in map(json.loads, target.read_text().splitlines())}
    assert found[0]["responses"] == [{"i": [0]}, {"i": [1]}] or [
        r["i"] for r in found[0]["responses"]
    ] == [0, 1]
    assert found[1]["responses"] == []
    failed = json.loads((tmp_path / "out.jsonl.errors.jsonl").read_text())
    assert "too many to count" in failed["error"]


@pytest.mark.parametrize(
    "load",
    [["-c", "1"], ["-c", "3"], ["-r", "50", "--connections", "4", "--seconds", "1"]],
)
@pytest.mark.parametrize("name", ["count", "steps"])
def test_perf_measures_whole_streams(
    popgate: Call, served: ServedGateway, name: str, load: list[str], tmp_path: Path
) -> None:
    numbers = tmp_path / "n.json"
    for seconds in ("0.1", "1", "10"):  # a busy machine may not end one in a tenth
        done = popgate(
            "perf", name, "-i", "n=[4]", *QUICK, "--seconds", seconds, *load,
            "--url", served.url, "--json", numbers,
        )  # fmt: skip
        assert done.code == 0, done.err
        (step,) = json.loads(numbers.read_text())["steps"]
        assert step["failed"] == 0
        if step["requests"] > 0:
            break
    else:
        raise AssertionError(done.out)


def test_perf_says_why_all_fail(
    popgate: Call, served: ServedGateway, tmp_path: Path
) -> None:
    """Also if the first one, which is tried alone, does not fail."""
    for name, given, reason in (
        ("count", "n=[101]", "too many to count"),
        ("echo", "x=[-1]", "negative numbers are refused"),
    ):
        done = popgate("perf", name, "-i", given, *QUICK, "--url", served.url)
        assert done.code == 1
        assert reason in done.err
    # Two connections share one sequence, which only the first request starts.
    options = ["--sequence-id", "perf", "--sequence-end", "-i", "x=[1]"]
    start = ["infer", "sum", "-i", "x=[1]", "--sequence-id", "perf"]
    assert popgate(*start, "--sequence-start", "--url", served.url).code == 0
    for load in ("1", "2"):
        assert popgate(*start, "--sequence-start", "--url", served.url).code == 0
        done = popgate("perf", "sum", *options, "-c", load, *QUICK, "--url", served.url)
        assert done.code == 1
        assert "every request failed; the first: 400" in done.err
        assert "sequence" in done.err


def totals_in(target: Path) -> list[float]:
    lines = target.read_text().splitlines()
    return [np.ravel(json.loads(line)["outputs"]["y"])[0] for line in lines]


def test_sequences(popgate: Call, served: ServedGateway, tmp_path: Path) -> None:
    at = ["--url", served.url]
    run = ["infer", "sum", *at, "--sequence-id", "mine"]
    for more, total in ((["--sequence-start"], 2), ([], 4), (["--sequence-end"], 6)):
        done = popgate(*run, "-i", "x=[2]", *more)
        assert done.code == 0, done.err
        assert f"[{total}.]" in done.out
    assert popgate(*run, "-i", "x=[2]").code == 1  # it has ended
    missing = popgate("infer", "sum", *at, "-i", "x=[2]", "--sequence-start")
    assert missing.code == 2
    assert "require --sequence-id" in missing.err
    long = popgate("infer", "sum", *at, "-i", "x=[2]", "--sequence-id", "1" * 5000)
    assert long.code == 1
    assert "'sequence_id' must be" in long.err

    rows, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("[1]\n[2]\n[3]\n")
    batch = ["batch", "sum", "-i", rows, "-o", target, *at]
    assert popgate(*batch, "--sequence-id", "7").code == 0
    totals = totals_in(target)
    assert totals == [1, 3, 6]
    again = popgate(*batch, "--sequence-id", "7")
    assert again.code == 2
    assert "cannot be resumed" in again.err
    target.unlink()
    assert popgate(*batch, "--sequence-start", "--sequence-end").code == 0
    totals = totals_in(target)
    assert sorted(totals) == [1, 2, 3]
    done = popgate("perf", "sum", "-c", "1,8", *QUICK, *at)
    assert done.code == 0, done.err


def test_parameters(popgate: Call, served: ServedGateway, tmp_path: Path) -> None:
    at = ["--url", served.url]
    for said, shown in (("tone=loud", "loud"), ("tone=3", "3"), ('tone="3"', "3")):
        done = popgate("infer", "echo", *at, "-i", "x=[1]", "-p", said)
        assert done.code == 0, done.err
        assert f"['{shown}']" in done.out
    rows, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("[1]\n")
    assert (
        popgate("batch", "echo", "-i", rows, "-o", target, *at, "-p", "tone=b").code
        == 0
    )
    assert "b" in str(json.loads(target.read_text())["outputs"]["said"])
    done = popgate("infer", "echo", *at, "-i", "x=[1]", "-p", "tone")
    assert done.code == 2
    assert "--parameter tone: expected NAME=VALUE" in done.err


def test_heads_of_answers() -> None:
    assert read_head(b"HTTP/1.1 200 OK\r\nContent-Length: 7") == (True, 7)
    assert read_head(b"HTTP/1.1 500 X\r\nTransfer-Encoding: Chunked") == (
        False,
        CHUNKED,
    )
    assert read_head(b"HTTP/1.1 200 OK") == (True, UNKNOWN)
    said = b'HTTP/1.1 429 Too Many\r\nA: b\r\n\r\n{"error": "full"}'
    assert reason_of(said) == "429 Too Many: full"
    assert reason_of(b"HTTP/1.1 502 Bad\r\n\r\n") == "502 Bad"
    assert reason_of(b"HTTP/1.1 502 Bad\r\n\r\n<p>") == "502 Bad: <p>"


def test_chunks_in_all_parts() -> None:
    body = (
        b'5;x=y\r\nhello\r\n19\r\ndata: {"error": "no more"}\r\n'
        b"1\r\n\n\r\n0\r\nTrailer: 1\r\n\r\n"
    )
    for size in range(1, len(body) + 1):
        chunks = ChunkedBody()
        ends = [chunks.feed(body[at : at + size]) for at in range(0, len(body), size)]
        assert ends == [False] * (len(ends) - 1) + [True], size
        if size > 40:
            assert chunks.error == "the stream failed: no more"
        assert chunks.error.startswith("the stream failed: ")
    with pytest.raises(ValueError, match="invalid literal"):
        ChunkedBody().feed(b"no size\r\n")
