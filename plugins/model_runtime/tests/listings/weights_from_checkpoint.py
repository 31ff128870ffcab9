#!/usr/bin/env python3
"""Serves a model with weights of a checkpoint instead of those of its file."""
import argparse
import os
import tempfile
from threading import Thread

import model_runtime
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("-p", "--popef", type=str, required=True)
popef_path = parser.parse_args().popef

with tempfile.TemporaryDirectory() as folder:
    checkpoint = os.path.join(folder, "step_1000.npz")
    np.savez(checkpoint, weights=np.array([1, 10, 100, 1000], np.float32))
    with np.load(checkpoint) as arrays:
        trained = {name: arrays[name] for name in arrays.files}

config = model_runtime.ModelRunnerConfig()
config.replication_factor = 2
config.frozen_inputs = model_runtime.InputMemoryView()
for name, array in trained.items():
    config.frozen_inputs[name] = array
runner = model_runtime.ModelRunner(popef_path, config=config)
assert "weights" not in [d.name for d in runner.getModelInputs()]

totals = [None] * config.replication_factor


def serve(replica):
    total = np.zeros(4, np.float64)
    view, out = model_runtime.InputMemoryView(), model_runtime.OutputMemoryView()
    out["output"] = np.empty((3, 4), np.float32)
    for step in range(20):
        view["tensor_A"] = np.full((3, 4), step + replica, np.float32)
        view["tensor_B"] = np.zeros((3, 4), np.float32)
        future = runner.executeAsync(view, out, replica_id=replica)
        future.wait()
        assert np.shares_memory(future["output"].numpy(), out["output"])
        total += out["output"][0]
    totals[replica] = total


workers = [Thread(target=serve, args=(replica,)) for replica in range(2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert (totals[0] == 190 * trained["weights"]).all(), totals
assert (totals[1] == 210 * trained["weights"]).all(), totals
print("Success: exiting")
