#!/usr/bin/env python3
"""Low level, with callbacks: a session on a device, a callback for each anchor, load,
main and save programs run one after the other, two sessions that share the device."""
import argparse

import model_runtime
import numpy as np
import popef


class Tensors:
    """Data of the host, by the name of the tensor."""

    def __init__(self):
        self.inputs = {}
        self.outputs = {}

    def input_factory(self, info):
        name = info.anchor.name()

        def read(memory):
            memory[...] = self.inputs[name]

        return read

    def output_factory(self, info):
        name = info.anchor.name()

        def written(memory):
            self.outputs[name] = np.array(memory, copy=True)

        return written


def connect(session, tensors):
    flow = session.model().metadata.programFlow()
    factory = model_runtime.predicate_factory.anchor_callbacks
    main_or_save = factory.orBind(
        model_runtime.AnchorCallbackPolicy.BIND_USER_CB,
        model_runtime.AnchorCallbackPolicy.BIND_EMPTY_CB,
        factory.predProgramFlowMain(flow), factory.predProgramFlowSave(flow))
    session.setUserInputHandler(tensors.input_factory,
                                factory.predProgramFlowMain(flow))
    session.setUserOutputHandler(tensors.output_factory, main_or_save)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--popef", nargs="+", required=True)
    args = parser.parse_args()
    reader = popef.Reader()
    for path in args.popef:
        reader.parseFile(path)
    model = popef.ModelBuilder(reader).createModel()
    flow = model.metadata.programFlow()
    config = model_runtime.SessionConfig()
    config.policy = model_runtime.LaunchPolicy.Deferred
    first, second = (model_runtime.Session(model, config) for _ in range(2))

    wait = model_runtime.DeviceWaitConfig(
        model_runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, 60, 1)
    device = model_runtime.DeviceManager().getDevice(model, wait)
    first.bindToDevice(device)
    missing = first.anchorsNotConnectedToCallbacks(flow.main() + flow.save())
    print("not connected:", {program: [a.name() for a in anchors]
                             for program, anchors in missing.items()})
    assert {a.name() for a in missing[flow.main()[0]]} == {"increment", "sum"}
    try:
        first.errorIfAnchorsAreNotConnectedToCallbacks(flow.main())
    except Exception as error:
        print("Refused:", error)
    else:
        raise AssertionError("the anchors are not connected")

    mine, other = Tensors(), Tensors()
    connect(first, mine)
    first.errorIfAnchorsAreNotConnectedToCallbacks(flow.main() + flow.save())
    step = np.ones((3, 4), np.float32)
    mine.inputs["increment"] = step
    first.runLoadPrograms()
    for number in range(1, 4):
        first.runMainPrograms()
        assert np.array_equal(mine.outputs["sum"], number * step)
    first.runSavePrograms()
    assert np.array_equal(mine.outputs["total"], 3 * step)

    # The second session takes the device: what the first one has is saved.
    first.runMainPrograms()
    second.bindToDevice(device)
    assert np.array_equal(mine.outputs["total"], 4 * step)
    connect(second, other)
    other.inputs["increment"] = 10 * step
    second.runMainPrograms()
    assert np.array_equal(other.outputs["sum"], 10 * step)
    second.unloadFromDevice()
    assert np.array_equal(other.outputs["total"], 10 * step)

    # Chosen programs, in the order of the vector.
    first.bindToDevice(device)
    load, main, save = flow.load()[0], flow.main()[0], flow.save()[0]
    mine.outputs.clear()
    first.runPrograms([load, main, main, save])
    assert np.array_equal(mine.outputs["total"], 2 * step)
    first.stop()
    assert first.isStopped()
    first.reload()
    assert not first.isStopped()
    first.runMainPrograms()
    assert np.array_equal(mine.outputs["sum"], step)
    print("Success: exiting")


if __name__ == "__main__":
    main()
