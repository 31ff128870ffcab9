#!/usr/bin/env python3
"""Writes a PopEF file, reads it back, adds blobs to it and rewrites it compressed."""
import argparse
import os
import tempfile

import numpy as np
import popef


def tensor_info(array):
    info = popef.TensorInfo()
    info.setShape(list(array.shape))
    info.setDataType(popef.DataType.F32)
    return info


def write(path, code, state):
    writer = popef.Writer(path)
    executable = writer.createExecutable("executable", False)
    executable.write(code, len(code))
    opaque = writer.createOpaqueBlob("opaque", "executable")
    opaque.write(state, len(state))
    try:
        executable.write(code, len(code))
    except Exception as error:
        print("A blob writer is not active any more:", error)
    else:
        raise AssertionError("two blob writers were active")
    writer.close()


def append(path, weights, dataset):
    writer = popef.FileWriter(path, popef.FileWriter.Mode.APPEND)
    info = popef.TensorDataInfo()
    info.setName("weights")
    info.setTensorInfo(tensor_info(weights))
    blob = writer.createTensorData(info)
    blob.write(weights.tobytes(), weights.nbytes)
    blob.close()

    feed = popef.FeedDataInfo()
    feed.setName("dataset")
    feed.setTensorInfo(tensor_info(dataset[0]))
    feed.setNumTensors(len(dataset))
    blob = writer.createFeedData(feed)
    for tensor in dataset:
        blob.write(tensor.tobytes(), tensor.nbytes)
    writer.close()


def compress(source, target):
    reader = popef.Reader()
    reader.parseFile(source)
    writer = popef.Writer(target)
    for metadata in reader.metadata():
        writer.writeMetadata(metadata)
    for executable in reader.executables():
        data = executable.executable()
        writer.createExecutable(executable.name, True).write(data, len(data))
    for opaque in reader.opaqueBlobs():
        data = opaque.data()
        writer.createOpaqueBlob(opaque.name, opaque.executable).write(data, len(data))
    for tensor in reader.tensors():
        data = tensor.data().tobytes()
        writer.createTensorData(tensor.info).write(data, len(data))
    for feed in reader.feeds():
        data = feed.data().tobytes()
        writer.createFeedData(feed.info).write(data, len(data))
    writer.close()


def check(path, code, state, weights, dataset):
    reader = popef.Reader()
    reader.parseFile(path)
    assert [e.name for e in reader.executables()] == ["executable"]
    assert bytes(reader.executables()[0].executable()) == code
    (opaque,) = reader.opaqueBlobs()
    assert (opaque.name, opaque.executable) == ("opaque", "executable")
    assert bytes(opaque.data()) == state
    (tensor,) = reader.tensors()
    assert tensor.info.name() == "weights"
    assert tensor.info.tensorInfo().shape() == list(weights.shape)
    assert np.array_equal(tensor.data(), weights)
    (feed,) = reader.feeds()
    assert feed.info.numTensors() == len(dataset)
    assert np.array_equal(feed.data(), dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+")
    parser.parse_args()
    code, state = b"0123456789" * 1000, b"some state"
    weights = np.random.randn(4, 8).astype(np.float32)
    dataset = np.random.randn(10, 2, 3).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.popef")
        small = os.path.join(folder, "small.popef")
        write(path, code, state)
        append(path, weights, dataset)
        check(path, code, state, weights, dataset)
        compress(path, small)
        check(small, code, state, weights, dataset)
        before, after = os.path.getsize(path), os.path.getsize(small)
        print("Compressed from", before, "to", after, "bytes")
        assert after < before
        with open(path, "w") as file:
            file.write("This is not cache")
        try:
            popef.Reader().parseFile(path)
        except Exception as error:
            print("Refused:", error)
        else:
            raise AssertionError("garbage was read")
    print("Success: exiting")


if __name__ == "__main__":
    main()
