#!/usr/bin/env python3
"""What people who live in NumPy hand over, and what they get when it is wrong."""
import sys

import numpy as np
from model_runtime import (InputMemoryView, ModelRunner, ModelRunnerConfig,
                           OutputMemoryView)

path = sys.argv[sys.argv.index("-p") + 1]
runner = ModelRunner(path)
names = [d.name for d in runner.getExecuteInputs()]
shape, dtype = runner.getExecuteInputs()[0].shape, np.float32
big = np.arange(1000, dtype=dtype).reshape(25, 40)

# Slices, transposes and turned arrays are taken for what they hold.
odd = [big[:3, :4], big[::2, ::3][:3, :4], big[:4, :3].T, big[2::-1, 3::-1],
       np.asfortranarray(big[:3, :4]), np.broadcast_to(dtype(2), shape)]
weights = runner.execute(dict.fromkeys(names, np.ones(shape, dtype)))["output"][0] - 1
for a in odd:
    result = runner.execute({names[0]: a, names[1]: np.zeros_like(a)})
    assert result["output"].dtype == dtype
    np.testing.assert_allclose(result["output"], a * weights)
    view = InputMemoryView()
    view[names[0]] = a
    view[names[1]] = np.ones(shape, dtype)
    out = OutputMemoryView()
    out["output"] = np.empty(shape, dtype)
    runner.execute(view, out)
    np.testing.assert_allclose(out["output"], a * weights + 1, rtol=1e-6)

# Results go into a part of an array of one's own, row by row of a larger job.
job = np.random.rand(30, 4).astype(dtype)
done = np.full((30, 6), -1, dtype)
for row in range(0, len(job), shape[0]):
    part = slice(row, row + shape[0])
    runner.execute({names[0]: job[part], names[1]: job[part]},
                   {"output": done[part, 1:5]})
np.testing.assert_allclose(done[:, 1:5], job * weights + job, rtol=1e-6)
assert (done[:, [0, 5]] == -1).all()

# All at once, in order; numbers of NumPy are numbers.
futures = [runner.executeAsync({n: np.full(shape, i, dtype) for n in names},
                               replica_id=np.int32(0)) for i in range(20)]
stack = np.stack([np.array(f["output"]) for f in futures])
np.testing.assert_allclose(stack[:, 0, :], np.arange(20)[:, None] * (weights + 1))

# What does not fit is refused, by name, and nothing else suffers.
a = np.ones(shape, dtype)
for wrong, word in [
    ({names[0]: a.astype(np.float64), names[1]: a}, names[0]),
    ({names[0]: np.ones((3, 5), dtype), names[1]: a}, names[0]),
    ({names[0]: np.ones((4, 4), dtype), names[1]: np.ones((4, 4), dtype)}, "multiple"),
    ({names[0]: a}, names[1]),
    ({names[0]: a, names[1]: a, "nobody": a}, "nobody"),
    ({names[0]: [[1.0] * 4] * 3, names[1]: a}, "list"),
]:
    try:
        runner.execute(wrong)
    except Exception as error:
        assert word in str(error), error
    else:
        raise SystemExit(f"{wrong} was taken")
config = ModelRunnerConfig()
try:
    config.replication_facter = 2
except AttributeError:
    pass
else:
    raise SystemExit("a slip of the pen went unnoticed")
assert runner.execute({n: a for n in names})["output"].shape == tuple(shape)
print("Success: exiting")
