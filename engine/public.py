"""All public names of `engine`. The package imports this module when one of them is
first used.
"""

from engine.config import (
    MAX_PRIORITY_LEVELS,
    MAX_WEIGHT,
    NO_BATCHING_DIM,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    FlushCallback,
    ModelRunnerConfig,
    weighted,
)
from engine.descriptors import raise_descriptor_limit
from engine.devices.cores import usable_cores
from engine.devices.device import Device
from engine.devices.device_manager import (
    DeviceInfo,
    DeviceManager,
    named_devices,
    parse_devices,
)
from engine.devices.device_state import DeviceState
from engine.devices.joined_device import JoinedDevice
from engine.devices.linked_device import LinkedDevice
from engine.devices.python_options import PythonOptions
from engine.devices.request import Request
from engine.devices.thread_plan import ThreadPlan
from engine.errors import (
    AlreadyExists,
    AnchorsNotConnected,
    CallbackFailed,
    Cancelled,
    CancelledByModel,
    Closed,
    DeadlineExceeded,
    DeadlineUnreachable,
    DeviceBusy,
    DeviceClosed,
    DeviceFailed,
    DeviceLost,
    DeviceWaitTimeout,
    EngineBug,
    EngineError,
    ExecutionFailed,
    Gone,
    Invalid,
    InvalidConfig,
    InvalidInput,
    InvalidModel,
    NoDeviceAvailable,
    NotFound,
    OutOfMemory,
    Overloaded,
    QueueClosed,
    QueueFull,
    Refused,
    RunnerClosed,
    SessionClosed,
    TimedOut,
    UnknownAnchor,
    Unsupported,
    WrongProcess,
)
from engine.faults import DeviceFault, FaultKind, RecoveryAction
from engine.model.interface import ModelInterface, describe_model
from engine.model.model_file import open_model
from engine.owner import die_with, environment, leave_ending_to_owner, starting
from engine.programs.python_requirements import is_requirement
from engine.programs.python_tensors import ANSWER as PYTHON_ANSWER
from engine.programs.python_tensors import MORE as PYTHON_MORE
from engine.programs.python_tensors import ROUTE as PYTHON_ROUTE
from engine.programs.python_tensors import STEP as PYTHON_STEP
from engine.runner.joined_runner import JoinedRunner
from engine.runner.model_runner import ModelRunner
from engine.runner.python_model import PythonModel
from engine.runner.request_numbers import process_of, request_numbers
from engine.runner.result import ExecuteResult
from engine.runner.runner_description import RunnerDescription
from engine.runner.stats import RunnerStats
from engine.runner.tracepoints import PhaseValues, Tracepoints
from engine.tensor import Array, Buffer, DataDesc, Tensor
from engine.thread_priority import give_way, lower_priority
from engine.transport.control import peer_uid
from engine.transport.messages import (
    DescriptorsLost,
    MalformedMessage,
    Message,
    MessageTooLong,
    ObjectField,
    Receiver,
    close_all,
)
from engine.transport.messages import encode as encode_message
from engine.transport.messages import send as send_message
from engine.transport.shared_memory import (
    SharedMemory,
    keep_large_blocks,
    return_free_memory,
)

__all__ = [
    "MAX_PRIORITY_LEVELS",
    "MAX_WEIGHT",
    "NO_BATCHING_DIM",
    "PYTHON_ANSWER",
    "PYTHON_MORE",
    "PYTHON_ROUTE",
    "PYTHON_STEP",
    "AlreadyExists",
    "AnchorsNotConnected",
    "Array",
    "Buffer",
    "CallbackFailed",
    "Cancelled",
    "CancelledByModel",
    "Closed",
    "DataDesc",
    "DeadlineExceeded",
    "DeadlineUnreachable",
    "DescriptorsLost",
    "Device",
    "DeviceBusy",
    "DeviceClosed",
    "DeviceFailed",
    "DeviceFault",
    "DeviceInfo",
    "DeviceLost",
    "DeviceManager",
    "DeviceState",
    "DeviceWaitConfig",
    "DeviceWaitStrategy",
    "DeviceWaitTimeout",
    "EngineBug",
    "EngineError",
    "ExecuteResult",
    "ExecutionFailed",
    "FaultKind",
    "FlushCallback",
    "Gone",
    "Invalid",
    "InvalidConfig",
    "InvalidInput",
    "InvalidModel",
    "JoinedDevice",
    "JoinedRunner",
    "LinkedDevice",
    "MalformedMessage",
    "Message",
    "MessageTooLong",
    "ModelInterface",
    "ModelRunner",
    "ModelRunnerConfig",
    "NoDeviceAvailable",
    "NotFound",
    "ObjectField",
    "OutOfMemory",
    "Overloaded",
    "PhaseValues",
    "PythonModel",
    "PythonOptions",
    "QueueClosed",
    "QueueFull",
    "Receiver",
    "RecoveryAction",
    "Refused",
    "Request",
    "RunnerClosed",
    "RunnerDescription",
    "RunnerStats",
    "SessionClosed",
    "SharedMemory",
    "Tensor",
    "ThreadPlan",
    "TimedOut",
    "Tracepoints",
    "UnknownAnchor",
    "Unsupported",
    "WrongProcess",
    "close_all",
    "describe_model",
    "die_with",
    "encode_message",
    "environment",
    "give_way",
    "is_requirement",
    "keep_large_blocks",
    "leave_ending_to_owner",
    "lower_priority",
    "named_devices",
    "open_model",
    "parse_devices",
    "peer_uid",
    "process_of",
    "raise_descriptor_limit",
    "request_numbers",
    "return_free_memory",
    "send_message",
    "starting",
    "usable_cores",
    "weighted",
]
