"""Arguments can be given by the names that the original's documents have for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

import model_runtime
from model_runtime import predicate_factory, ring_size_multiplier_factory
from popef import Anchor, Model
from popgate_sessions import AnchorCallbackPolicy, PopefDataUsagePolicy

#: What is called, and the names of its arguments in the order of their places, for each
#: of its forms. The predicates that `andBind` and `orBind` take have no names, and
#: `p_timeout` and its like of the C++ pages is `timeout` in programs in Python.
FORMS = """
ConstTensorMemoryView(data, data_size_bytes)
ConstTensorMemoryView(other)
DataDesc(name, size_in_bytes, shape, data_type, popef_contains_tensor_data)
DeviceConstraints(requiresRemoteBuffersSupport)
DeviceManager.createIpuModelDevice(model, tiles_per_ipu)
DeviceManager.createIpuModelDevice(num_ipus, ipu_version, tiles_per_ipu)
DeviceManager.createSmallIpuModelDevice(model)
DeviceManager.createSmallIpuModelDevice(num_ipus, ipu_version)
DeviceManager.getDevice(model, wait_config)
DeviceManager.getDevice(num_ipus, device_options, wait_config, constrains)
DeviceManager.getDevice(num_ipus, device_options, wait_config, constraints)
DeviceManager.tryGetDevice(num_ipus, device_options, wait_config, constraints)
DeviceManager.getSpecificDevice(device_id, device_options, wait_config)
DeviceManager.getSpecificDevice(device_id, model, wait_config)
DeviceManager.tryGetDevice(model, wait_config)
DeviceManager.tryGetDevice(num_ipus, device_options, wait_config, constrains)
DeviceManager.tryGetSpecificDevice(device_id, device_options, wait_config)
DeviceManager.tryGetSpecificDevice(device_id, model, wait_config)
DeviceWaitConfig(strategy, timeout, sleepTime)
DeviceWaitConfig(timeout, sleepTime)
InputQueue.enqueue(input, data_size, read_start_callback, read_complete_callback)
ModelRunner(model, config)
ModelRunner(popef_path, config)
ModelRunner(popef_paths, config)
ModelRunner.execute(input_data, output_data, replica_id)
ModelRunner.execute(input_data, replica_id)
ModelRunner.executeAsync(input_data, output_data, replica_id)
ModelRunner.executeAsync(input_data, replica_id)
ModelRunner.getMonitoringStatisticsMean(monitoring_info, replica_id)
ModelRunner.getMonitoringStatisticsPercentile(monitoring_info, quantile, replica_id)
ModelRunner.getMonitoringStatisticsTotalCount(monitoring_info, replica_id)
ModelRunner.getTimeTrace(time_info, replica_id, cur)
OutputQueue.enqueue(output, data_size, write_complete_callback)
QueueManager.inputQueue(name)
QueueManager.outputQueue(name)
RingMemoryPool(blob_size, num_blobs)
Session(model, config)
Session(popef_paths, config)
Session.anchorsNotConnectedToCallbacks(progs)
Session.bindToDevice(device)
Session.errorIfAnchorsAreNotConnectedToCallbacks(progs)
Session.runPrograms(progs)
Session.setCallbackForAnchor(anchor_handle, callback)
Session.setUserInputHandler(factory, anchor_callback_predicate, skip_connected)
Session.setUserOutputHandler(factory, anchor_callback_predicate, skip_connected)
SpscRingBuffer(num_buffers, label, timeout_cb, timeout_ns)
SpscRingBuffer.getState(prefix)
SpscRingBuffer.write(obj)
TensorMemory(data_size_bytes)
TensorMemoryView(data, data_size_bytes)
allocateQueueStorage(queue, extra_buffers)
predicate_factory.anchor_callbacks.andBind(accept_policy, reject_policy)
predicate_factory.anchor_callbacks.orBind(accept_policy, reject_policy)
predicate_factory.anchor_callbacks.predNonScalarType(accept_policy, reject_policy)
predicate_factory.popef_data_usage.orBind(accept_policy, reject_policy)
ring_size_multiplier_factory.ringSizeMultForMainProgs(model, \
main_ring_size_multiplier, load_save_ring_size_multiplier)
ring_size_multiplier_factory.ringSizeMultForProgs(programs, \
selected_ring_size_multiplier, others_ring_size_multiplier)
"""
#: Those that both namespaces have.
PREDICATES = """
predProgramFlowLoad(flow, accept_policy, reject_policy)
predProgramFlowMain(flow, accept_policy, reject_policy)
predProgramFlowSave(flow, accept_policy, reject_policy)
predProgramNotAssigned(accept_policy, reject_policy)
predProgramIndexes(program_indexes, accept_policy, reject_policy)
predProgramIndexes(accepted_programs_policies, reject_policy)
predAnchorsPolicies(accepted_anchors_policies, reject_policy)
"""
#: Why what has arguments is not above.
NO_FORMS = {
    "AnchorWithPolicy": "the documents do not name its members",
    "CallbackInfo": "made by the library, with members that are not known",
    "Device": "made by DeviceManager",
    "IQueue": "made by QueueManager",
    "InputData": "a struct of C++ without a constructor",
    "InputQueue": "made by QueueManager",
    "ModelRunnerConfig": "made without arguments; its options are in names.toml",
    "ModelRunnerConfig.to_engine": "ours",
    "OutputData": "a struct of C++ without a constructor",
    "OutputFutureMemory": "made by ModelRunner",
    "OutputFutureMemory.memory": "ours",
    "OutputFutureMemoryView": "made by ModelRunner",
    "PopefPaths": "a list: the documents do not name what it is made of",
    "OutputQueue": "made by QueueManager",
    "ProgramsWithPolicy": "of its members one is named: names.toml",
    "QueueManager": "made by Session",
    "Session.createQueueManager": "takes what the constructors of QueueManager do",
    "SessionConfig": "made without arguments; its options are in names.toml",
    "SpscRingBuffer.printState": "`getState` by its older name",
}
SPACES = ("anchor_callbacks", "popef_data_usage")


def forms() -> Iterator[tuple[str, list[str]]]:
    lines = FORMS.splitlines()
    for space in SPACES:
        lines += [f"predicate_factory.{space}.{p}" for p in PREDICATES.split("\n") if p]
    for line in filter(None, lines):
        path, _, inside = line.removesuffix(")").partition("(")
        yield path, inside.split(", ")


def found(path: str) -> Any:
    owner: Any = model_runtime
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner


def parameters(called: Any) -> list[str]:
    """Without `self`, which is there where a class is asked for its function."""
    try:
        return [p for p in inspect.signature(called).parameters if p != "self"]
    except ValueError:  # a dict
        return []


@pytest.mark.parametrize(("path", "names"), list(forms()), ids=str)
def test_arguments_by_name(path: str, names: list[str]) -> None:
    called = inspect.signature(found(path))
    myself = [None] if "self" in called.parameters else []
    called.bind(*myself, **dict.fromkeys(names))
    places = [
        p.name for p in called.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert [p for p in places if p in names] == [n for n in names if n in places]


def called_with_arguments() -> Iterator[str]:
    modules: list[tuple[str, ModuleType]] = [("", model_runtime)]
    modules.append(("ring_size_multiplier_factory.", ring_size_multiplier_factory))
    for space in SPACES:
        module = getattr(predicate_factory, space)
        modules.append((f"predicate_factory.{space}.", module))
    for prefix, module in modules:
        for name in getattr(module, "__all__", None) or vars(module):
            what = getattr(module, name)
            ours = getattr(what, "__module__", "").startswith("model_runtime")
            if name.startswith("_") or not ours or name == "Factories":
                continue
            if inspect.isroutine(what) and parameters(what):
                yield prefix + name
            elif inspect.isclass(what) and not issubclass(what, Enum):
                yield from of_class(prefix + name, what)


def of_class(path: str, what: type) -> Iterator[str]:
    own = vars(what)
    if ("__init__" in own or "__new__" in own) and parameters(what):
        yield path
    for name, member in own.items():
        is_method = inspect.isfunction(member) and not name.startswith("_")
        if is_method and parameters(member):
            yield f"{path}.{name}"


def test_everything_that_takes_arguments_is_listed() -> None:
    listed = {path for path, _ in forms()} | set(NO_FORMS)
    aliases = {"InputDesc", "OutputDesc", "InputRingBuffer", "OutputRingBuffer"}
    assert set(called_with_arguments()) - listed - aliases == set()


def anchor(*programs: int) -> Anchor:
    made = Anchor()
    made.setPrograms(list(programs))
    return made


@pytest.mark.parametrize("space", SPACES)
def test_policies_of_programs_by_name_and_by_place(space: str) -> None:
    factory = getattr(predicate_factory, space)
    policies: Any = AnchorCallbackPolicy
    if space == "popef_data_usage":
        policies = PopefDataUsagePolicy
    first, second, *_ = policies
    groups = [predicate_factory.ProgramsWithPolicy([1], second)]
    predicates: list[Callable[[Anchor], Any]] = [
        factory.predProgramIndexes(
            accepted_programs_policies=groups, reject_policy=first
        ),
        factory.predProgramIndexes(groups, reject_policy=first),
        factory.predProgramIndexes(groups, first),
    ]
    for predicate in predicates:
        assert (predicate(anchor(1)), predicate(anchor(2))) == (second, first)
    nobody = factory.predProgramIndexes(
        accepted_programs_policies=[], reject_policy=second
    )
    assert nobody(anchor(1)) is second
    named = factory.predProgramIndexes(program_indexes=[2], accept_policy=first)
    assert named(anchor(2)) is first


def test_arguments_of_two_forms_are_not_mixed() -> None:
    factory = predicate_factory
    groups = [factory.ProgramsWithPolicy([1], AnchorCallbackPolicy.SKIP_CB)]
    policy = AnchorCallbackPolicy.BIND_USER_CB
    pred: Any = factory.predProgramIndexes
    with pytest.raises(TypeError, match="expected one of program_indexes and"):
        pred()
    with pytest.raises(TypeError, match="expected one of program_indexes and"):
        pred([1], accepted_programs_policies=groups)
    with pytest.raises(TypeError, match="accept_policy is not allowed with"):
        pred(accepted_programs_policies=groups, accept_policy=policy)
    with pytest.raises(TypeError, match="accept_policy is not allowed with"):
        pred(groups, accept_policy=policy, reject_policy=policy)
    with pytest.raises(TypeError, match="no other argument"):
        pred([*groups, 2])
    with pytest.raises(TypeError, match="no other argument"):
        pred(accepted_programs_policies=[1])
    manager: Any = model_runtime.DeviceManager()
    with pytest.raises(TypeError, match="expected one of num_ipus and model"):
        manager.getDevice()
    with pytest.raises(TypeError, match="one of device_options and model"):
        manager.getSpecificDevice(0, {}, model=Model)
