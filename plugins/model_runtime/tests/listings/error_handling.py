#!/usr/bin/env python3
"""A launcher that survives what can go wrong around a model, and says what it was."""
import os
import sys
import tempfile
from datetime import timedelta

import model_runtime
import numpy as np
import popef

path = sys.argv[2]


def attempt(what, action, *args, **kwargs):
    try:
        action(*args, **kwargs)
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}")
        return str(error)
    raise SystemExit(f"{what}: nothing was raised")


with tempfile.TemporaryDirectory() as folder:
    assert "nowhere.popef" in attempt(
        "no file", model_runtime.ModelRunner, os.path.join(folder, "nowhere.popef"))
    bad = os.path.join(folder, "bad.popef")
    with open(bad, "w") as file:
        file.write("This is not cache")
    attempt("no container", popef.Reader().parseFile, bad)
    attempt("no container", model_runtime.ModelRunner, bad)
    with open(path, "rb") as whole, open(bad, "wb") as file:
        file.write(whole.read()[:-100])
    attempt("half a file", model_runtime.ModelRunner, bad)

config = model_runtime.ModelRunnerConfig()
config.replication_factor = 1000
config.device_wait_config = model_runtime.DeviceWaitConfig(
    model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT,
    timeout=timedelta(seconds=0), sleepTime=timedelta(seconds=1))
attempt("too many replicas", model_runtime.ModelRunner, path, config=config)
config.replication_factor = 0
attempt("no replica", model_runtime.ModelRunner, path, config=config)
config.replication_factor = 1
config.frozen_inputs["nothing"] = np.zeros(3, np.float32)
assert "nothing" in attempt("frozen", model_runtime.ModelRunner, path, config=config)
del config.frozen_inputs["nothing"]
attempt("look-ahead", setattr, config, "max_look_ahead", "all")

runner = model_runtime.ModelRunner(path, config=config)
one = np.ones((3, 4), np.float32)
good = {d.name: one for d in runner.getExecuteInputs()}
for replica in (1, -1, 2**31):
    attempt("replica", runner.execute, good, replica_id=replica)
    attempt("replica", runner.executeAsync, good, {"output": one.copy()}, replica)
out = np.zeros((3, 4), np.float32)
attempt("no such output", runner.execute, good, {"outputs": out})
attempt("small output", runner.execute, good, {"output": out[:2]})
attempt("wide output", runner.execute, good, {"output": out.astype(np.float64)})
attempt("no request number 5", runner.getTimeTrace, {}, 0, 5)
attempt("no quantile", runner.getMonitoringStatisticsPercentile, {}, 90)
views = model_runtime.OutputMemoryView()
fixed = np.zeros(12, np.float32)
fixed.flags.writeable = False
attempt("read-only", views.__setitem__, "output", fixed)
assert not out.any()

# After all of that the runner is as good as new.
runner.execute(good, {"output": out})
assert out.any()
session = model_runtime.Session(path)
attempt("not bound", session.runMainPrograms)
del runner
session.bindToDevice(model_runtime.DeviceManager().getDevice(session.model()))
attempt("not connected", session.errorIfAnchorsAreNotConnectedToCallbacks, [1])
attempt("not connected", session.runMainPrograms)
attempt("no such handle", session.setCallbackForAnchor, "nobody", print)
print("Success: exiting")
