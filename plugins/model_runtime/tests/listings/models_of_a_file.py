#!/usr/bin/env python3
"""Finds the models in a file and runs each on a device of its own, side by side."""
import argparse
import threading
from datetime import timedelta

import model_runtime
import numpy as np
import popef

p = argparse.ArgumentParser()
p.add_argument("-p", "--popef", nargs=1)
path, = p.parse_args().popef

reader = popef.Reader()
reader.parseFile(path)
builder = popef.ModelBuilder(reader)
manager = model_runtime.DeviceManager()
wait = model_runtime.DeviceWaitConfig(timedelta(seconds=20), timedelta(milliseconds=50))
assert wait.strategy == model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT
print(manager, "version", manager.ipuHardwareVersion(), wait)

runners = {}
for executable in reader.executables():
    model = builder.createModel(executable.name)
    device = manager.getDevice(model, wait)
    config = model_runtime.ModelRunnerConfig()
    config.replica_to_device[0] = device
    runners[executable.name] = model_runtime.ModelRunner(model, config=config)
    print(executable, device, runners[executable.name].config().replica_to_device)

# Nothing is left of two devices, and asking says so at once, or after the timeout.
assert manager.tryGetDevice(1) is None
try:
    manager.getDevice(
        1, wait_config=model_runtime.DeviceWaitConfig(timedelta(milliseconds=100),
                                                      timedelta(milliseconds=20)))
except RuntimeError as error:
    print("as expected:", error)
else:
    raise SystemExit("there was a third device")

results, errors = {}, []


def work(name, runner):
    try:
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        for _ in range(50):
            inputs = {d.name: array for d in runner.getExecuteInputs()}
            results[name] = runner.execute(inputs)["output"]
    except Exception as error:
        errors.append(error)


threads = [threading.Thread(target=work, args=item) for item in runners.items()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
factor = {name: (r[1] / np.arange(4, 8)).mean() for name, r in results.items()}
assert np.isclose(factor["double"], 2) and np.isclose(factor["triple"], 3), factor
del device, model, config, runners, threads
assert manager.tryGetDevice(1, wait_config=wait) is not None
print("Success: exiting")
