"""Text models by PopGate's own clients and commands.

Covers: plugins/client/src/popgate_client/texts.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from popgate_client import AsyncClient, Client, Encoding, InvalidRequest, Label
from tests.app.served import ServedGateway, run_popgate

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import HIDDEN, classifier_folder, embedding_folder

TEXTS = ["the cat sits on the mat", "a fast model", "dog"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    embedding_folder(root / "unit")
    classifier_folder(root / "classes", ["good", "bad", "ugly"])
    classifier_folder(root / "rank", ["score"])
    cache = str(tmp_path_factory.mktemp("cache"))
    with ServedGateway(root, "--devices", "cpu:1", "--cache-dir", cache) as gateway:
        yield gateway.wait_ready()


@pytest.fixture
def client(served: ServedGateway) -> Iterator[Client]:
    with Client(served.url) as client:
        yield client


def test_strings_become_vectors(client: Client) -> None:
    vectors = client.embed("unit", TEXTS)
    assert vectors.shape == (3, HIDDEN)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(client.embed("unit", TEXTS[1]), vectors[1], atol=1e-6)
    assert client.embed("unit", TEXTS, dimensions=4).shape == (3, 4)
    raw = client.embed("unit", TEXTS, normalize=False)
    assert np.linalg.norm(raw[0]) != pytest.approx(1, abs=1e-3)
    bad: Any
    for bad in ([], ["a", 3]):
        with pytest.raises(InvalidRequest):
            client.embed("unit", bad)
    with pytest.raises(InvalidRequest, match="the model has no prompt 'query'"):
        client.embed("unit", TEXTS, prompt="query")


def test_documents_are_ranked_and_texts_classified(client: Client) -> None:
    found = client.rerank("rank", "a cat", TEXTS)
    assert sorted(one.index for one in found) == [0, 1, 2]
    assert [one.text for one in found] == [TEXTS[one.index] for one in found]
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert client.rerank("rank", "a cat", TEXTS, top=1) == found[:1]
    one = client.classify("classes", TEXTS[0])
    assert {type(label) for label in one} == {Label}
    assert sum(label.score for label in one) == pytest.approx(1, abs=1e-5)
    assert client.classify("classes", TEXTS)[0] == one


def test_the_client_of_event_loops_does_the_same(
    served: ServedGateway, client: Client
) -> None:
    async def run() -> tuple[Any, Any, Any]:
        async with AsyncClient(served.url) as mine:
            return await asyncio.gather(
                mine.embed("unit", TEXTS),
                mine.rerank("rank", "a cat", TEXTS),
                mine.classify("classes", TEXTS),
            )

    vectors, ranked, classes = asyncio.run(run())
    np.testing.assert_allclose(vectors, client.embed("unit", TEXTS), atol=1e-6)
    assert ranked == client.rerank("rank", "a cat", TEXTS)
    assert classes == client.classify("classes", TEXTS)


@pytest.mark.parametrize("encoding", [Encoding.json, Encoding.msgpack, Encoding.binary])
def test_texts_come_in_every_encoding(
    served: ServedGateway, client: Client, encoding: Encoding
) -> None:
    vectors = client.embed("unit", TEXTS)
    with Client(served.url, encoding=encoding) as other:
        found = other.infer("unit", {"text": TEXTS})["embedding"]
    np.testing.assert_allclose(found, vectors, atol=1e-6)


def test_the_alias_of_the_input_is_known_in_every_encoding(
    served: ServedGateway, client: Client
) -> None:
    expected = client.embed("unit", TEXTS)
    tensor: dict[str, Any] = {"name": "input_text", "datatype": "BYTES"}
    tensor["shape"] = [len(TEXTS)]
    raw = [text.encode() for text in TEXTS]
    data = b"".join(len(one).to_bytes(4, "little") + one for one in raw)
    sized = {**tensor, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [sized]}).encode()
    length = {"inference-header-content-length": str(len(head))}
    ways: list[tuple[bytes, dict[str, str]]] = [
        (json.dumps({"inputs": [{**tensor, "data": TEXTS}]}).encode(), {}),
        (
            msgpack.packb({"inputs": [{**tensor, "data": TEXTS}]}),
            {"content-type": "application/msgpack"},
        ),
        (head + data, length),
    ]
    for body, headers in ways:
        given = {**headers, "accept": "application/json"}
        path = "/v1/models/unit/infer"
        answer = served.client.post(path, content=body, headers=given)
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        found = np.reshape(output["data"], output["shape"])
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_of_a_file_is_embedded(
    served: ServedGateway, client: Client, tmp_path: Path, kind: str
) -> None:
    source, target = tmp_path / f"rows.{kind}", tmp_path / "found.jsonl"
    rows = [{"id": n, "body": text} for n, text in enumerate(TEXTS)]
    if kind == "csv":
        cells = [f"{row['id']},{row['body']}" for row in rows]
        source.write_text("\n".join(["id,body", *cells]))
    elif kind == "jsonl":
        source.write_text("\n".join(map(json.dumps, rows)))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    words = ("batch", "unit", "-i", source, "-o", target, "--keep", "id")
    command = (*words, "--url", served.url)
    result = run_popgate(*command, "--column", "body")
    assert result.returncode == 0, result.stderr
    assert "3 rows" in result.stderr
    written = target.read_text()
    lines: list[Any] = list(map(json.loads, written.splitlines()))
    vectors = client.embed("unit", TEXTS)
    found = {int(line["id"]): line["outputs"]["embedding"] for line in lines}
    assert len(found) == len(TEXTS)
    for number, vector in found.items():
        np.testing.assert_allclose(np.ravel(vector), vectors[number], atol=1e-6)
    target.unlink()
    result = run_popgate(*command, "--column", "nix")
    assert result.returncode != 0
    errors = (tmp_path / "found.jsonl.errors.jsonl").read_text()
    assert "no column nix for --column; the columns are id, body" in errors
