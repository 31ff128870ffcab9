#!/usr/bin/env python3
"""Prints and compares everything once, as people do in a notebook."""
import copy
import sys
from datetime import timedelta

import model_runtime
import popef
from model_runtime import AnchorCallbackPolicy as Policy
from model_runtime import DeviceWaitStrategy, LaunchPolicy, PopefDataUsagePolicy
from popef import BlobType, DataType, TensorType

path = sys.argv[-1]
for enum, names in [
    (DataType, "BOOL F8 F16 F32 F64 S8 U8 S16 U16 S32 U32 S64 U64 F8143 F8152"),
    (TensorType, "UNKNOWN INPUT OUTPUT"),
    (BlobType, "POPLAR_EXECUTABLE METADATA DATA_TENSOR DATA_FEED OPAQUE"),
    (DeviceWaitStrategy, "NO_WAIT WAIT_WITH_TIMEOUT WAIT_FOREVER"),
    (Policy, "BIND_USER_CB BIND_EMPTY_CB SKIP_CB"),
    (PopefDataUsagePolicy, "USE_POPEF_DATA_IF_ANY USE_USER_DATA"),
    (LaunchPolicy, "Deferred Immediate"),
]:
    for number, name in enumerate(names.split()):
        member = getattr(enum, name)
        assert str(member) == f"{member}" == f"{enum.__name__}.{name}", str(member)
        assert repr(member) == f"<{enum.__name__}.{name}: {number}>"
        assert (int(member), member.value, member.name) == (number, number, name)
        assert enum(number) is member and enum.__members__[name] is member
        assert {member: name}[member] == name and member != None  # noqa: E711

config = model_runtime.ModelRunnerConfig()
other = copy.copy(config)
other.timeout_ns = 0
assert config.timeout_ns == timedelta(seconds=5) and config.batching_dim == 0xFFFFFFFF
for name in [n for n in dir(config) if not n.startswith("_")]:
    print(name, "=", getattr(config, name))
print(config, other, model_runtime.SessionConfig(), model_runtime.DeviceWaitConfig())

runner = model_runtime.ModelRunner(path, config)
for descs in (runner.getExecuteInputs(), runner.getExecuteOutputs(),
              runner.getModelInputs(), runner.getModelOutputs()):
    print(descs)
    for desc in descs:
        shape = desc.shape
        shape[0] *= 10
        assert desc.shape[0] * 10 == shape[0]
        size = desc.numpy_data_type().itemsize
        for extent in desc.shape:
            size *= extent
        assert size == desc.size_in_bytes
        print(desc.name, desc.data_type, desc.popef_contains_tensor_data)
stored = {d.name: d.popef_contains_tensor_data for d in runner.getModelInputs()}
assert stored == {"tensor_A": False, "tensor_B": False, "weights": True}

reader = popef.Reader()
reader.parseFile(path)
print(reader, reader.metadata(), reader.executables(), reader.tensors(), reader.feeds())
for anchor in reader.metadata()[0].anchors():
    print(anchor, anchor.tensorInfo(), [int(p) for p in anchor.programs()])
    assert anchor.tensorInfo() == copy.deepcopy(anchor.tensorInfo())
info = popef.TensorInfo()
assert info.shape() == [] and info != reader.tensors()[0].info.tensorInfo()
print(popef.Anchor(), popef.Option("name", "value"), popef.ProgramFlow(), info)
print("Success: exiting")
