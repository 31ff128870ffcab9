#!/usr/bin/env python3
"""State that lives on the device: given when the model is loaded, fetched by the save
program when the runner goes."""
import argparse

import model_runtime
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    manager = model_runtime.DeviceManager()
    wait = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, 60, 1)
    devices = [manager.getDevice(1, {}, wait) for _ in range(2)]
    start = np.full((3, 4), 100, np.float32)
    totals = [np.zeros((3, 4), np.float32) for _ in devices]

    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 2
    config.replica_to_device = {0: devices[0], 1: devices[1]}
    config.run_save_programs = True
    frozen = model_runtime.InputMemoryView()
    frozen["total"] = start
    config.frozen_inputs = frozen
    views = model_runtime.ReplicaIdToOutputMemoryView()
    for replica, total in enumerate(totals):
        view = model_runtime.OutputMemoryView()
        view["total"] = total
        views[replica] = view
    config.replica_to_save_programs_outputs = views

    runner = model_runtime.ModelRunner(args.popef[0], config)
    assert [d.name for d in runner.getExecuteInputs()] == ["increment"]
    one = np.ones((3, 4), np.float32)
    for number in range(1, 6):
        result = runner.execute({"increment": one}, replica_id=0)
        assert np.array_equal(result["sum"], start + number)
    runner.execute({"increment": 7 * one}, replica_id=1)
    assert not totals[0].any()
    del runner
    assert np.array_equal(totals[0], start + 5)
    assert np.array_equal(totals[1], start + 7)
    print("Success: exiting")


if __name__ == "__main__":
    main()
