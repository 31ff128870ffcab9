#!/usr/bin/env python3
"""Writes PopEF files again with compressed executables, and checks that they run."""
import os
import sys
import tempfile

import model_runtime
import numpy as np
import popef


def repack(source, target):
    reader = popef.Reader()
    reader.parseFile(source)
    writer = popef.Writer(target)
    for metadata in reader.metadata():
        writer.writeMetadata(metadata)
    for executable in reader.executables():
        content = executable.executable()
        blob = writer.createExecutable(executable.name, True)
        blob.write(content, len(content))
    for tensor in reader.tensors():
        data = tensor.data().tobytes()
        writer.createTensorData(tensor.info).write(data, len(data))
    for feed in reader.feeds():
        data = feed.data().tobytes()
        writer.createFeedData(feed.info).write(data, len(data))
    for opaque in reader.opaqueBlobs():
        data = opaque.data()
        writer.createOpaqueBlob(opaque.name, opaque.executable).write(data, len(data))
    writer.close()
    return len(reader.executables())


def run(path):
    runner = model_runtime.ModelRunner(path)
    inputs = {i.name: np.ones(i.shape, i.numpy_data_type())
              for i in runner.getExecuteInputs()}
    return {k: np.array(v) for k, v in runner.execute(inputs).items()}


with tempfile.TemporaryDirectory() as folder:
    for path in [a for a in sys.argv[1:] if a != "-p"]:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".popef") as file:
            count = repack(path, file.name)
            before, after = os.path.getsize(path), os.path.getsize(file.name)
            print(f"{path}: {count} executables, {before} -> {after} bytes")
            one, other = run(path), run(file.name)
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])
print("Success: exiting")
