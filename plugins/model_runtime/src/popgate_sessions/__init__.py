"""Sessions: the low level of Model Runtime, with queues and callbacks.

    from popgate_sessions import Session

A plugin of PopGate. Runs in the client process; `popgate_session_worker` is its half in
the device process. May import of PopGate: `engine` with its modules, `popef_io`.
`engine` hands the names on (entry point group `popgate.engine_names`).
"""

from popgate_sessions.bindings import descs_of
from popgate_sessions.callbacks import (
    AnchorCallbackPolicy,
    AnchorCallbackPredicate,
    CallbackFactory,
    CallbackHandle,
    CallbackInfo,
    PopefDataUsagePolicy,
    PopefDataUsagePredicate,
)
from popgate_sessions.local_session import LocalSession
from popgate_sessions.memory_pool import RingMemoryPool, allocate_queue_storage
from popgate_sessions.predicates import (
    AnchorWithPolicy,
    ProgramsWithPolicy,
    RingSizeMultiplier,
    anchor_policies,
    and_bind,
    non_scalar,
    not_assigned,
    or_bind,
    program_policies,
    ring_size_for_main_programs,
    ring_size_for_programs,
    used_by,
    used_by_load,
    used_by_main,
    used_by_save,
)
from popgate_sessions.queue_manager import QueueManager
from popgate_sessions.queues import InputData, InputQueue, OutputData, OutputQueue
from popgate_sessions.ring_buffer import SpscRingBuffer
from popgate_sessions.session import DEFAULT_BUFFERS, Session
from popgate_sessions.session_config import LaunchPolicy, SessionConfig

__all__ = [
    "DEFAULT_BUFFERS",
    "AnchorCallbackPolicy",
    "AnchorCallbackPredicate",
    "AnchorWithPolicy",
    "CallbackFactory",
    "CallbackHandle",
    "CallbackInfo",
    "InputData",
    "InputQueue",
    "LaunchPolicy",
    "LocalSession",
    "OutputData",
    "OutputQueue",
    "PopefDataUsagePolicy",
    "PopefDataUsagePredicate",
    "ProgramsWithPolicy",
    "QueueManager",
    "RingMemoryPool",
    "RingSizeMultiplier",
    "Session",
    "SessionConfig",
    "SpscRingBuffer",
    "allocate_queue_storage",
    "anchor_policies",
    "and_bind",
    "descs_of",
    "non_scalar",
    "not_assigned",
    "or_bind",
    "program_policies",
    "ring_size_for_main_programs",
    "ring_size_for_programs",
    "used_by",
    "used_by_load",
    "used_by_main",
    "used_by_save",
]
