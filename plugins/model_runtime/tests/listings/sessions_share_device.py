#!/usr/bin/env python3
"""Two sessions of a model with state take turns on one device; what each has saved is
brought back to it when it comes again."""
import sys

import numpy as np
from model_runtime import DeviceManager, Session, SessionConfig
from popef import ModelBuilder, Reader

reader = Reader()
reader.parseFile(sys.argv[2])
model = ModelBuilder(reader).createModel()
flow = model.metadata.programFlow()
device = DeviceManager().createIpuModelDevice(1)
print(device.ipuVersion(), flow, model.metadata.programsMap())


class Counter:
    def __init__(self, step):
        self.seen, self.saved = [], None
        self.session = Session(model, config=SessionConfig())
        self.session.bindToDevice(device)

        def source(info):
            return lambda memory: memory.fill(step)

        def sink(info):
            def keep(memory):
                if set(info.anchor.programs()) & set(flow.save()):
                    self.saved = np.array(memory)
                else:
                    self.seen.append(float(memory.ravel()[0]))
            return keep

        self.session.setUserInputHandler(source)
        self.session.setUserOutputHandler(sink)
        programs = flow.load() + flow.main() + flow.save()
        assert self.session.anchorsNotConnectedToCallbacks(programs) == {}
        self.session.errorIfAnchorsAreNotConnectedToCallbacks(programs)


one, ten = Counter(1), Counter(10)
for _ in range(3):
    one.session.runMainPrograms()
assert one.seen == [1, 2, 3], one.seen
ten.session.runMainPrograms()
assert one.saved is not None and one.saved.ravel()[0] == 3, one.saved
assert ten.seen == [10], ten.seen
one.session.runMainPrograms()
assert ten.saved.ravel()[0] == 10
assert one.seen[3] == 1  # the load programs have run again
one.session.runSavePrograms()
assert one.saved.ravel()[0] == one.seen[-1]
one.session.unloadFromDevice()
print(one.session, ten.session)
print("Success: exiting")
