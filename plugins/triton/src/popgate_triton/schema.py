"""The messages of Triton's ``model_config.proto``, as protobuf descriptors.

Names and types are Triton's. The numbers are PopGate's, because only the text and JSON
forms are read, which use names. The schema is built when the first configuration is
read: most repositories have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "triton"

_ENUMS: Mapping[str, str] = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 "
    "TYPE_INT8 TYPE_INT16 TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 "
    "TYPE_STRING TYPE_BF16",
    "Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "InstanceKind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
    "SecondaryKind": "KIND_NVDLA",
    "TimeoutAction": "REJECT DELAY",
    "OptimizationPriority": "PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN",
    "ControlKind": "CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END "
    "CONTROL_SEQUENCE_CORRID",
    "BatchInputKind": "BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT "
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO BATCH_MAX_ELEMENT_COUNT_AS_SHAPE "
    "BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN",
    "BatchOutputKind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
}

# Each line is a field: type and name. `*` repeats it, `map` has string keys, and
# `/group` makes it one of several exclusive fields.
_MESSAGES: Mapping[str, str] = {
    "RateResource": "string name; bool global; uint32 count",
    "RateLimiter": "*RateResource resources; uint32 priority",
    "SecondaryDevice": "SecondaryKind kind; int64 device_id",
    "InstanceGroup": "string name; InstanceKind kind; int32 count; "
    "RateLimiter rate_limiter; *int32 gpus; *SecondaryDevice secondary_devices; "
    "*string profile; bool passive; string host_policy",
    "Reshape": "*int64 shape",
    "Input": "string name; DataType data_type; Format format; *int64 dims; "
    "Reshape reshape; bool is_shape_tensor; bool allow_ragged_batch; bool optional; "
    "bool is_non_linear_format_io",
    "Output": "string name; DataType data_type; *int64 dims; Reshape reshape; "
    "string label_filename; bool is_shape_tensor; bool is_non_linear_format_io",
    "BatchInput": "BatchInputKind kind; *string target_name; DataType data_type; "
    "*string source_input",
    "BatchOutput": "*string target_name; BatchOutputKind kind; *string source_input",
    "Latest": "uint32 num_versions",
    "All": "",
    "Specific": "*int64 versions",
    "VersionPolicy": "Latest latest/choice; All all/choice; Specific specific/choice",
    "Graph": "int32 level",
    "GraphShape": "*int64 dim",
    "GraphLowerBound": "int32 batch_size; map GraphShape input",
    "GraphSpec": "int32 batch_size; map GraphShape input; "
    "GraphLowerBound graph_lower_bound",
    "Cuda": "bool graphs; bool busy_wait_events; *GraphSpec graph_spec; "
    "bool output_copy_stream",
    "Accelerator": "string name; map string parameters",
    "Accelerators": "*Accelerator gpu_execution_accelerator; "
    "*Accelerator cpu_execution_accelerator",
    "PinnedMemory": "bool enable",
    "Optimization": "Graph graph; OptimizationPriority priority; Cuda cuda; "
    "Accelerators execution_accelerators; PinnedMemory input_pinned_memory; "
    "PinnedMemory output_pinned_memory; uint32 gather_kernel_buffer_threshold; "
    "bool eager_batching",
    "QueuePolicy": "TimeoutAction timeout_action; uint64 default_timeout_microseconds; "
    "bool allow_timeout_override; uint32 max_queue_size",
    "DynamicBatching": "*int32 preferred_batch_size; "
    "uint64 max_queue_delay_microseconds; bool preserve_ordering; "
    "uint64 priority_levels; uint64 default_priority_level; "
    "QueuePolicy default_queue_policy; map64 QueuePolicy priority_queue_policy",
    "Control": "ControlKind kind; *int32 int32_false_true; *float fp32_false_true; "
    "*bool bool_false_true; DataType data_type",
    "ControlInput": "string name; *Control control",
    "InitialState": "DataType data_type; *int64 dims; bool zero_data/state_data; "
    "string data_file/state_data; string name",
    "State": "string input_name; string output_name; DataType data_type; *int64 dims; "
    "*InitialState initial_state; bool use_same_buffer_for_input_output; "
    "bool use_growable_memory",
    "Direct": "uint64 max_queue_delay_microseconds; float minimum_slot_utilization",
    "Oldest": "int32 max_candidate_sequences; *int32 preferred_batch_size; "
    "uint64 max_queue_delay_microseconds; bool preserve_ordering",
    "SequenceBatching": "Direct direct/strategy; Oldest oldest/strategy; "
    "uint64 max_sequence_idle_microseconds; *ControlInput control_input; "
    "*State state; bool iterative_sequence; bool generative_sequence",
    "Step": "string model_name; int64 model_version; map string input_map; "
    "map string output_map; string model_namespace",
    "Ensemble": "*Step step; uint32 max_inflight_requests",
    "Parameter": "string string_value",
    "WarmupInput": "DataType data_type; *int64 dims; bool zero_data/source; "
    "bool random_data/source; string input_data_file/source",
    "Warmup": "string name; uint32 batch_size; map WarmupInput inputs; uint32 count",
    "Operations": "*string op_library_filename",
    "Transaction": "bool decoupled",
    "Agent": "string name; map string parameters",
    "Agents": "*Agent agents",
    "ResponseCache": "bool enable",
    "MetricIdentifier": "string family",
    "HistogramOptions": "*double buckets",
    "MetricControl": "MetricIdentifier metric_identifier; "
    "HistogramOptions histogram_options",
    "Metrics": "*MetricControl metric_control",
    "ModelConfig": "string name; string platform; string backend; string runtime; "
    "VersionPolicy version_policy; int32 max_batch_size/batch; *Input input; "
    "*Output output; *BatchInput batch_input; *BatchOutput batch_output; "
    "Optimization optimization; DynamicBatching dynamic_batching/scheduling; "
    "SequenceBatching sequence_batching/scheduling; "
    "Ensemble ensemble_scheduling/scheduling; *InstanceGroup instance_group; "
    "string default_model_filename; map string cc_model_filenames; "
    "map string metric_tags; map Parameter parameters; *Warmup model_warmup; "
    "Operations model_operations; Transaction model_transaction_policy; "
    "Agents model_repository_agents; ResponseCache response_cache; "
    "Metrics model_metrics",
}

_FIELD = re.compile(r"(\*|map64 |map )?(\w+) (\w+)(?:/(\w+))?")


@cache
def config_class() -> Any:
    """Return the class of the message ``ModelConfig``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="popgate/triton_model_config.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, words in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, word in enumerate(words.split()):
            enum.value.add(name=word, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, line in enumerate(filter(None, fields.split(";")), 1):
            _add_field(message, number, line.strip())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{_PACKAGE}.ModelConfig")
    return message_factory.GetMessageClass(found)


def _add_field(message: Any, number: int, line: str) -> None:
    match = _FIELD.fullmatch(line)
    assert match is not None, line
    how, kind, name, group = match.groups()
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_OPTIONAL
    if how == "*":
        field.label = field.LABEL_REPEATED
    if group is not None:
        groups = [oneof.name for oneof in message.oneof_decl]
        if group not in groups:
            message.oneof_decl.add(name=group)
            groups.append(group)
        field.oneof_index = groups.index(group)
    if how in ("map ", "map64 "):
        entry_name = "".join(part.title() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _add_field(entry, 1, "uint64 key" if how == "map64 " else "string key")
        _add_field(entry, 2, f"{kind} value")
        field.label = field.LABEL_REPEATED
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry_name}"
        return
    if kind in _ENUMS or kind in _MESSAGES:
        field.type = field.TYPE_ENUM if kind in _ENUMS else field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
