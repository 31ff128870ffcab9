"""The asyncio client: health, metadata, inference."""

import argparse
import asyncio
import sys

import numpy as np
import tritonclient.http.aio as httpclient


async def check(url: str) -> None:
    async with httpclient.InferenceServerClient(url=url) as client:
        if not (await client.is_server_live() and await client.is_server_ready()):
            sys.exit("FAILED: health")
        if not await client.is_model_ready("simple"):
            sys.exit("FAILED: is_model_ready")
        if (await client.get_server_metadata())["name"] != "triton":
            sys.exit("FAILED: server metadata")
        if (await client.get_model_metadata("simple"))["name"] != "simple":
            sys.exit("FAILED: model metadata")
        if (await client.get_model_config("simple"))["name"] != "simple":
            sys.exit("FAILED: model config")
        if not await client.get_model_repository_index():
            sys.exit("FAILED: repository index")
        await client.get_inference_statistics()
        await client.get_trace_settings()
        await client.get_log_settings()
        await client.get_system_shared_memory_status()
        await client.get_cuda_shared_memory_status()
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()
        for call in (client.load_model("simple"), client.unload_model("simple")):
            try:
                await call
            except Exception as error:
                text = "explicit model load / unload is not allowed if polling is"
                if text not in str(error):
                    sys.exit(f"FAILED: {error}")
            else:
                sys.exit("FAILED: models can be loaded")
        in0 = np.arange(16, dtype=np.int32).reshape(1, 16)
        in1 = np.ones((1, 16), np.int32)
        inputs = [
            httpclient.InferInput("INPUT0", [1, 16], "INT32"),
            httpclient.InferInput("INPUT1", [1, 16], "INT32"),
        ]
        inputs[0].set_data_from_numpy(in0)
        inputs[1].set_data_from_numpy(in1)
        result = await client.infer("simple", inputs, headers={"test": "1"})
        if not (result.as_numpy("OUTPUT0") == in0 + in1).all():
            sys.exit("infer error: incorrect sum")
        if not (result.as_numpy("OUTPUT1") == in0 - in1).all():
            sys.exit("infer error: incorrect difference")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    asyncio.run(check(parser.parse_args().url))
    print("PASS: aio infer")


if __name__ == "__main__":
    main()
