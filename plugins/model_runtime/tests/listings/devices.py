#!/usr/bin/env python3
"""Devices: by count, by model, a specific one, a software model of one; who waits."""
import argparse
from datetime import timedelta

import model_runtime
import numpy as np
import popef


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    reader = popef.Reader()
    for path in args.popef:
        reader.parseFile(path)
    model = popef.ModelBuilder(reader).createModel()
    manager = model_runtime.DeviceManager()
    print("hardware version:", manager.ipuHardwareVersion())

    config = model_runtime.DeviceWaitConfig()
    assert config.strategy == model_runtime.DeviceWaitStrategy.NO_WAIT
    assert config.timeout == timedelta(seconds=0)
    assert config.sleepTime == timedelta(seconds=15)
    config = model_runtime.DeviceWaitConfig(timedelta(seconds=5))
    assert config.strategy == model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT
    assert not model_runtime.DeviceConstraints()
    assert model_runtime.DeviceConstraints(True)

    first = manager.getDevice(1)
    second = manager.tryGetDevice(model)
    assert second is not None
    assert manager.tryGetDevice(1) is None
    try:
        manager.getDevice(1)
    except Exception as error:
        print("No device:", error)
    else:
        raise AssertionError("both devices are taken")
    quick = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
        timeout=timedelta(milliseconds=200), sleepTime=timedelta(milliseconds=50))
    assert manager.tryGetDevice(1, {}, quick) is None
    del first
    device = manager.getDevice(1, {}, quick, model_runtime.DeviceConstraints(True))
    assert isinstance(device.ipuVersion(), int)
    del device, second
    specific = manager.getSpecificDevice(1, model, quick)
    assert manager.tryGetSpecificDevice(1) is None
    del specific

    # Software devices are not of the pool: there can be any number of them.
    soft = [manager.createIpuModelDevice(1), manager.createIpuModelDevice(model),
            manager.createSmallIpuModelDevice(1, ipu_version=21)]
    assert soft[0].ipuVersion() == 2
    assert soft[2].ipuVersion() == 21
    config = model_runtime.ModelRunnerConfig()
    config.replication_factor = 3
    config.replica_to_device = dict(enumerate(soft))
    runner = model_runtime.ModelRunner(model, config)
    data = {d.name: np.random.randn(*d.shape).astype(d.numpy_data_type())
            for d in runner.getExecuteInputs()}
    results = [runner.execute(data, replica_id=n)["output"] for n in range(3)]
    assert all(np.array_equal(results[0], result) for result in results)
    try:
        runner.execute(data, replica_id=3)
    except Exception as error:
        print("No replica:", error)
    else:
        raise AssertionError("there are three replicas")
    print("Success: exiting")


if __name__ == "__main__":
    main()
