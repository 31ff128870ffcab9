"""Values that commands and clients send, against a server that says what came.

Covers: plugins/tools/src/popgate_tools/tensors.py,
plugins/client/src/popgate_client/values.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plugins.client.tests.both import Driven
from popgate_client import InvalidRequest, NotFound
from popgate_onnx.compiler import compile_fused
from tests.app.cli.calls import Call
from tests.app.served import ServedGateway

HEAD = '<ir_version: 10, opset_import: ["": 20]>'
MODELS = {
    "u64": "m (uint64[n,2] x) => (uint64[n,2] y) { y = Identity(x) }",
    "rows": "m (float[n,2] x) => (float[n,2] y) { y = Identity(x) }",
    "buyers": """m (float[n,1] age, double[n,1] income) => (double[n,1] sum)
        { wide = Cast <to = 11> (age)
          sum = Add(wide, income) }""",
}
SIZE = """
class Size:
    inputs = {"image": "BYTES[1]"}
    outputs = {"size": "INT32[1]"}
    def __call__(self, image):
        return {"size": [len(image[0])]}
"""


def source(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {text}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    for name, text in MODELS.items():
        onnx.save(source(text), root / f"{name}.onnx")
    parts = [
        (name, source(f"m (float[n,2] x) => (float[n,2] y) {{ y = {op}(x) }}"))
        for name, op in (("neg", "Neg"), ("abs", "Abs"))
    ]
    compile_fused(
        [(name, part.SerializeToString()) for name, part in parts],
        root / "both.popef",
        selector="which",
    )
    (root / "size" / "1").mkdir(parents=True)
    (root / "size" / "1" / "model.py").write_text(SIZE)
    cache = str(tmp_path_factory.mktemp("cache"))
    with ServedGateway(root, "--allow-python", "--cache-dir", cache) as gateway:
        yield gateway.wait_ready()


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: pytest.FixtureRequest, served: ServedGateway) -> Iterator[Driven]:
    with Driven(request.param, served.url) as driven:
        yield driven


def test_fused_models(popgate: Call, served: ServedGateway, tmp_path: Path) -> None:
    at = ["--url", served.url]
    chosen = ["-i", "which=[1]", "-i", "abs/x=[[-1, 2]]"]
    done = popgate("infer", "both", *chosen, *at)
    assert done.code == 0, done.err
    assert done.out == "abs/y  FP32[1,2]\n[[1. 2.]]\n"
    unknown = popgate("infer", "both", *chosen, "-i", "z=1", *at)
    assert (unknown.code, "no input 'z'" in unknown.err) == (2, True)
    rows, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(
        '{"which": [0], "neg/x": [[1, 2]]}\n{"which": [1], "abs/x": [[-3, 4]]}\n'
    )
    done = popgate("batch", "both", "-i", rows, "-o", target, *at)
    assert done.code == 0, done.err
    found = {d["row"]: d for d in map(json.loads, target.read_text().splitlines())}
    assert found[0]["outputs"] == {"neg/y": [-1, -2]}
    assert found[1]["outputs"] == {"abs/y": [3, 4]}
    done = popgate(
        "perf", "both", *chosen, *at, "--seconds", "0.1", "--warm-up", "0",
        "--within", "1000",
    )  # fmt: skip
    assert done.code == 0, done.err


def test_fused_models_over_http(served: ServedGateway) -> None:
    values = {"which": [1], "abs/x": [[-1.0, 2.0]]}
    post = served.client.post
    answer = post("/v1/models/both:predict", json={"inputs": values})
    assert answer.json() == {"outputs": [[1, 2]]}
    for path in ("generate", "generate_stream"):
        answer = post(f"/v2/models/both/{path}", json=values)
        assert answer.status_code == 200, answer.text
        assert '"abs/y":[1.0,2.0]' in answer.text
        assert "neg/y" not in answer.text
    npy = {"accept": "application/x-npy"}
    answer = post("/v1/models/both/infer", json={"inputs": values}, headers=npy)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-npy"
    assert b"(1, 2)" in answer.content[:128]


def test_zero_rows(
    popgate: Call, served: ServedGateway, client: Driven, tmp_path: Path
) -> None:
    none = np.empty((0, 2), np.float32)
    assert client.infer("rows", x=none)["y"].shape == (0, 2)
    np.save(tmp_path / "none.npy", none)
    for encoding in ("binary", "json", "msgpack", "npy"):
        done = popgate(
            "infer", "rows", "-i", f"x={tmp_path / 'none.npy'}", "--url", served.url,
            "-e", encoding,
        )  # fmt: skip
        assert done.code == 0, (encoding, done.err)
        assert done.out.startswith("y  FP32[0,2]\n")


def test_whole_numbers_of_64_bits(
    popgate: Call, served: ServedGateway, client: Driven
) -> None:
    given = [[2**64 - 1, 0]]
    assert client.infer("u64", x=given)["y"].tolist() == given
    assert client.infer("u64", x=np.array(given, object))["y"].tolist() == given
    done = popgate("infer", "u64", "-i", f"x={given}", "--url", served.url)
    assert done.code == 0, done.err
    assert str(2**64 - 1) in done.out
    for value, said in (
        ([[2**64, 0]], "18446744073709551616 is out of range for UINT64"),
        ([[-1, 0]], "fit UINT64"),
        ([[0.5, 0]], "fit UINT64"),
        ([["a", 0]], "UINT64"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            client.infer("u64", x=value)


def test_columns_and_tables(
    popgate: Call, served: ServedGateway, client: Driven
) -> None:
    pandas = pytest.importorskip("pandas")
    records = [{"age": 25, "income": 1.5}, {"age": 32, "income": None}]
    frame = pandas.DataFrame(records)
    columns = {"age": [25, 32], "income": [1.5, None]}
    for given in (records, frame, columns, dict(frame)):
        found = client.infer("buyers", given)["sum"]
        np.testing.assert_array_equal(found, [[26.5], [np.nan]])
    assert client.infer("buyers", age=25, income=2)["sum"].tolist() == [[27]]
    assert client.infer("buyers", age=[25, 1], income=[2, 3])["sum"].shape == (2, 1)
    wide = pandas.DataFrame([[1, 2], [3, 4]], columns=["a", "b"])
    assert client.infer("rows", wide)["y"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InvalidRequest, match="no input 'id'"):
        client.infer("buyers", frame.assign(id=1))
    done = popgate(
        "infer", "buyers", "-i", "age=[25, 32]", "-i", "income=[1, 2]", "--url",
        served.url,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "sum  FP64[2,1]" in done.out


def test_arrow_tables(client: Driven) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"age": [25, 32], "income": [1.5, None]})
    for given in (table, *table.to_batches()):
        found = client.infer("buyers", given)["sum"]
        np.testing.assert_array_equal(found, [[26.5], [np.nan]])


@pytest.mark.parametrize("value", [[1.0], {"age": [1]}])
def test_an_unknown_model_gets_a_hint(client: Driven, value: Any) -> None:
    with pytest.raises(NotFound, match="did you mean 'buyers'"):
        client.infer("buyrs", value)


def test_files_as_they_are(
    popgate: Call, served: ServedGateway, tmp_path: Path
) -> None:
    picture = tmp_path / "cat.jpg"
    picture.write_bytes(bytes(range(256)))
    at = ["--url", served.url]
    done = popgate("infer", "size", "-i", f"image=@{picture}", *at)
    assert done.code == 0, done.err
    assert "[256]" in done.out
    done = popgate("infer", "size", "-i", f"image=@{tmp_path}/none.jpg", *at)
    assert done.code == 2
    assert "none.jpg: No such file" in done.err
    done = popgate("infer", "rows", "-i", f"x=@{picture}", *at)
    assert done.code == 2
    assert "which only a BYTES input takes" in done.err
