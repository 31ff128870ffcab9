#!/usr/bin/env python3
"""Lists what is in PopEF files, as a script that prepares a deployment would."""
import argparse

import numpy as np
import popef


def describe(metadata):
    flow = metadata.programFlow()
    names = metadata.programsMap()
    print("executable:", metadata.executable())
    print("  ipus:", metadata.numIpus(), "version:", metadata.ipuVersion(),
          "replicas:", metadata.replicationFactor(),
          "iterations:", metadata.deviceIterations(),
          "inference:", metadata.isInference(), "pod:", metadata.isPOD(),
          "processes:", metadata.numProcesses(), "seed:", metadata.seedHandle())
    for phase, programs in (("load", flow.load()), ("main", flow.main()),
                            ("save", flow.save())):
        print(" ", phase, [names[index] for index in programs])
    for option in metadata.engineOptions() + metadata.deviceOptions():
        print("  option", option.name(), "=", option.value())
    for anchor in metadata.anchors():
        info = anchor.tensorInfo()
        size = int(np.prod(info.shape())) * info.numpyDType().itemsize
        assert info.sizeInBytes() == size
        assert popef.popefTypeToNumpyDType(info.dataType()) == info.numpyDType()
        print(" ", anchor.type(), anchor.name(), anchor.handle(), info.shape(),
              info.dataType(), anchor.programs(), anchor.isPerReplica())
    inputs = [a.name() for a in metadata.anchors()
              if a.type() == popef.TensorType.INPUT and a.programs() == flow.main()]
    outputs = [a.name() for a in metadata.anchors()
               if a.type() == popef.TensorType.OUTPUT and a.programs() == flow.main()]
    return inputs, outputs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    reader = popef.Reader()
    for path in args.popef:
        reader.parseFile(path)
    described = {m.executable(): describe(m) for m in reader.metadata()}
    stored = {tensor.info.name() for tensor in reader.tensors()}
    stored |= {feed.info.name() for feed in reader.feeds()}
    print("data:", sorted(stored))
    for executable in reader.executables():
        assert len(executable.executable()) > 0
        inputs, outputs = described[executable.name]
        assert inputs and outputs
    if len(reader.executables()) == 1:
        model = popef.ModelBuilder(reader).createModel()
        assert model.metadata.executable() == reader.executables()[0].name
        anchors = {anchor.name() for anchor in model.metadata.anchors()}
        assert stored <= anchors
    else:
        try:
            popef.ModelBuilder(reader).createModel()
        except Exception as error:
            print("Several models:", error)
        else:
            raise AssertionError("which model was meant?")
        for executable in reader.executables():
            model = popef.ModelBuilder(reader).createModel(executable.name)
            assert model.metadata.executable() == executable.name
    print("Success: exiting")


if __name__ == "__main__":
    main()
