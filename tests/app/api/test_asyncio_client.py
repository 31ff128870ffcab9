"""Every method of the asyncio client, on a real server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.app.served import ServedGateway

STATS = {"x-stats": "open"}
ROW = np.array([[1, 2, 3, 4]], np.float32)


def affine_input() -> Any:
    tensor = triton_aio.InferInput("input", list(ROW.shape), "FP32")
    tensor.set_data_from_numpy(ROW)
    return tensor


def run(extended: ServedGateway, ask: Callable[[Any], Awaitable[None]]) -> None:
    async def with_client() -> None:
        address = extended.url.removeprefix("http://")
        async with triton_aio.InferenceServerClient(address) as client:
            await ask(client)

    asyncio.run(with_client())


def test_health_and_metadata(extended: ServedGateway) -> None:
    async def ask(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("affine", "1")
        assert not await client.is_model_ready("affine", "7")
        assert (await client.get_server_metadata())["name"] == "popgate"
        assert (await client.get_model_metadata("affine"))["versions"] == ["1"]
        stats = await client.get_inference_statistics("affine", headers=STATS)
        assert stats["model_stats"][0]["name"] == "affine"
        with pytest.raises(InferenceServerException, match="unknown model: 'none'"):
            await client.get_model_metadata("none")

    run(extended, ask)


def test_models_come_and_go(extended: ServedGateway, extended_folder: Path) -> None:
    async def ask(client: Any) -> None:
        config = json.dumps({"max_batch_size": 2})
        content = (extended_folder / "models" / "text.popef").read_bytes()
        files = {"file:3/model.popef": content}
        await client.load_model("brought", config=config, files=files)
        described = extended.client.get("/v1/models/brought").json()
        assert described["max_batch_size"] == 2
        assert (await client.get_model_metadata("brought"))["versions"] == ["3"]
        await client.unload_model("brought", unload_dependents=True)
        assert not await client.is_model_ready("brought")
        index = await client.get_model_repository_index()
        (entry,) = [e for e in index if e["name"] == "brought"]
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        with pytest.raises(InferenceServerException, match="failed to load 'none'"):
            await client.load_model("none")
        await client.load_model("text")

    run(extended, ask)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_inference(extended: ServedGateway, coding: str | None) -> None:
    async def ask(client: Any) -> None:
        for outputs in (None, [triton_aio.InferRequestedOutput("output", False)]):
            calls = [
                client.infer(
                    "affine",
                    [affine_input()],
                    request_id=str(number),
                    outputs=outputs,
                    request_compression_algorithm=coding,
                    response_compression_algorithm=coding,
                )
                for number in range(5)
            ]
            for number, result in enumerate(await asyncio.gather(*calls)):
                assert result.get_response()["id"] == str(number)
                np.testing.assert_array_equal(result.as_numpy("output"), ROW * 2 + 1)
        with pytest.raises(InferenceServerException, match="unknown model: 'none'"):
            await client.infer("none", [affine_input()])

    run(extended, ask)


def test_shared_memory(extended: ServedGateway) -> None:
    key = f"popgate-aio-{os.getpid()}"
    segment = shm.create_shared_memory_region("aio", key, 32)
    shm.set_shared_memory_region(segment, [ROW])

    async def ask(client: Any) -> None:
        await client.register_system_shared_memory("aio", key, 32)
        (status,) = await client.get_system_shared_memory_status("aio")
        assert (status["key"], status["byte_size"]) == (key, 32)
        tensor = triton_aio.InferInput("input", [1, 4], "FP32")
        tensor.set_shared_memory("aio", 16)
        wanted = triton_aio.InferRequestedOutput("output")
        wanted.set_shared_memory("aio", 16, offset=16)
        await client.infer("affine", [tensor], outputs=[wanted])
        got = shm.get_contents_as_numpy(segment, np.float32, [1, 4], offset=16)
        np.testing.assert_array_equal(got, ROW * 2 + 1)
        await client.unregister_system_shared_memory("aio")
        assert await client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="GPUs not supported"):
            await client.register_cuda_shared_memory("aio", b"", 0, 32)
        assert await client.get_cuda_shared_memory_status() == []
        await client.unregister_cuda_shared_memory()

    try:
        run(extended, ask)
    finally:
        shm.destroy_shared_memory_region(segment)


def test_offline_twins_of_infer(extended: ServedGateway) -> None:
    client = triton_aio.InferenceServerClient
    body, size = client.generate_request_body([affine_input()])
    headers = {"Inference-Header-Content-Length": str(size)}
    path = "/v2/models/affine/infer"
    answer = extended.client.post(path, content=body, headers=headers)
    length = int(answer.headers["inference-header-content-length"])
    result = client.parse_response_body(answer.content, header_length=length)
    np.testing.assert_array_equal(result.as_numpy("output"), ROW * 2 + 1)


def test_a_plugin_adds_headers(extended: ServedGateway) -> None:
    class Statistics(triton_aio.InferenceServerClientPlugin):  # type: ignore[misc]
        def __call__(self, request: Any) -> None:
            request.headers.update(STATS)

    async def ask(client: Any) -> None:
        client.register_plugin(Statistics())
        assert (await client.get_inference_statistics())["model_stats"]
        client.unregister_plugin()
        with pytest.raises(InferenceServerException, match="is restricted"):
            await client.get_inference_statistics()

    run(extended, ask)
