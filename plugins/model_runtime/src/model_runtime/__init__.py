"""Inference under the names of Graphcore's `model_runtime` module.

A thin front end of `engine`, with the original's spelling, conventions and defaults.
docs/how-to/migrate-from-model-runtime.md says for each name whether it works, how it
differs, or why it is missing. Errors are RuntimeErrors; values of a wrong type also
raise a TypeError.
"""

from importlib.metadata import version

from engine import DeviceWaitStrategy
from model_runtime import predicate_factory, ring_size_multiplier_factory
from model_runtime.config import (
    ModelRunnerConfig,
    ReplicaIdToDevice,
    ReplicaIdToOutputMemoryView,
)
from model_runtime.data_desc import DataDesc, InputDesc, OutputDesc
from model_runtime.data_rings import InputRingBuffer, OutputRingBuffer
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.devices import Device, DeviceConstraints, DeviceManager
from model_runtime.memory import InputMemoryView, OutputMemoryView
from model_runtime.model_runner import ModelRunner
from model_runtime.model_source import PopefPaths
from model_runtime.predicates import (
    AnchorCallbackPredicate,
    PopefDataUsagePredicate,
    null_anchor_callback_predicate,
    null_popef_data_usage_predicate,
)
from model_runtime.queue_data import (
    InputData,
    OutputData,
    ReadCompleteCallback,
    ReadStartCallback,
    WriteCompleteCallback,
)
from model_runtime.queues import (
    InputQueue,
    IQueue,
    OutputQueue,
    QueueManager,
    allocateQueueStorage,
)
from model_runtime.results import (
    FuturePyArray,
    FuturePyArrayView,
    OutputFutureMemory,
    OutputFutureMemoryView,
    OutputMemory,
)
from model_runtime.ring import IMemoryPool, RingMemoryPool, SpscRingBuffer
from model_runtime.ring_size_multiplier_factory import RingSizeMultiplierProdType
from model_runtime.session import (
    CallbackFactory,
    CallbackHandle,
    CallbackInfo,
    LaunchPolicy,
    Session,
    SessionConfig,
)
from model_runtime.tensor_memory import (
    ConstTensorMemoryView,
    InputMemory,
    TensorMemory,
    TensorMemoryView,
)
from popgate_sessions import AnchorCallbackPolicy, PopefDataUsagePolicy

#: The version of the distribution, PopGate.
__version__ = version("popgate")

__all__ = [
    "AnchorCallbackPolicy",
    "AnchorCallbackPredicate",
    "CallbackFactory",
    "CallbackHandle",
    "CallbackInfo",
    "ConstTensorMemoryView",
    "DataDesc",
    "Device",
    "DeviceConstraints",
    "DeviceManager",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "FuturePyArray",
    "FuturePyArrayView",
    "IMemoryPool",
    "IQueue",
    "InputData",
    "InputDesc",
    "InputMemory",
    "InputMemoryView",
    "InputQueue",
    "InputRingBuffer",
    "LaunchPolicy",
    "ModelRunner",
    "ModelRunnerConfig",
    "OutputData",
    "OutputDesc",
    "OutputFutureMemory",
    "OutputFutureMemoryView",
    "OutputMemory",
    "OutputMemoryView",
    "OutputQueue",
    "OutputRingBuffer",
    "PopefDataUsagePolicy",
    "PopefDataUsagePredicate",
    "PopefPaths",
    "QueueManager",
    "ReadCompleteCallback",
    "ReadStartCallback",
    "ReplicaIdToDevice",
    "ReplicaIdToOutputMemoryView",
    "RingMemoryPool",
    "RingSizeMultiplierProdType",
    "Session",
    "SessionConfig",
    "SpscRingBuffer",
    "TensorMemory",
    "TensorMemoryView",
    "WriteCompleteCallback",
    "allocateQueueStorage",
    "null_anchor_callback_predicate",
    "null_popef_data_usage_predicate",
    "predicate_factory",
    "ring_size_multiplier_factory",
]
