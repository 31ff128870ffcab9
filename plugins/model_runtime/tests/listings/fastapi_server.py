#!/usr/bin/env python3
"""A small web service around a model, as a team would put one into production."""
import argparse
import asyncio
import contextlib
from typing import Dict, List

import httpx
import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import model_runtime

parser = argparse.ArgumentParser()
parser.add_argument("-p", "--popef")
args = parser.parse_args()
state = {}


class Query(BaseModel):
    tensors: Dict[str, List[List[float]]]


@contextlib.asynccontextmanager
async def lifespan(app):
    config = model_runtime.ModelRunnerConfig()
    config.thread_safe = True
    config.batching_dim = 0
    config.timeout_ns = 1_000_000
    config.device_wait_config = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_FOREVER)
    state["model"] = model_runtime.ModelRunner(args.popef, config=config)
    yield
    state.clear()


app = FastAPI(lifespan=lifespan)


@app.get("/signature")
def signature():
    model = state["model"]
    return {
        "inputs": {i.name: i.shape for i in model.getExecuteInputs()},
        "outputs": {o.name: o.numpy_data_type().name for o in model.getExecuteOutputs()},
    }


@app.post("/predict")
def predict(query: Query):
    model = state["model"]
    dtypes = {i.name: i.numpy_data_type() for i in model.getExecuteInputs()}
    try:
        result = model.execute(
            {k: np.asarray(v, dtype=dtypes[k]) for k, v in query.tensors.items()})
    except Exception as error:
        raise HTTPException(422, str(error))
    return {name: array.tolist() for name, array in result.items()}


async def ask(client, rows):
    a = [[float(rows)] * 4] * rows
    answer = await client.post(
        "/predict", json={"tensors": {"tensor_A": a, "tensor_B": a}})
    assert answer.status_code == 200, answer.text
    got = np.array(answer.json()["output"])
    assert got.shape == (rows, 4)
    expected = rows * np.linspace(0.5, 2, 4) + rows
    np.testing.assert_allclose(got, np.tile(expected, (rows, 1)))


async def main():
    transport = httpx.ASGITransport(app=app)
    async with lifespan(app), httpx.AsyncClient(
            transport=transport, base_url="http://service") as client:
        assert (await client.get("/signature")).json() == {
            "inputs": {"tensor_A": [3, 4], "tensor_B": [3, 4]},
            "outputs": {"output": "float32"},
        }
        await asyncio.gather(*(ask(client, rows) for rows in [1, 2, 3, 4, 7] * 6))
        bad = await client.post(
            "/predict", json={"tensors": {"tensor_A": [[1, 2, 3, 4]]}})
        assert bad.status_code == 422 and "tensor_B" in bad.text


asyncio.run(main())
print("Success: exiting")
