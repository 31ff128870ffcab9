"""The names that ``model.py`` files for Triton's Python backend import.

    import triton_python_backend_utils as pb_utils

They are other spellings of `popgate.Model` and its context. `adapter` turns a
``TritonPythonModel`` into a `popgate.Model`. docs/how-to/migrate-from-triton.md says
what differs.
"""

from triton_python_backend_utils.host import (
    HOST,
    Logger,
    Metric,
    MetricFamily,
    get_model_dir,
    is_model_ready,
    load_model,
    unload_model,
)
from triton_python_backend_utils.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from triton_python_backend_utils.requests import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    InferenceRequest,
    PreferredMemory,
    get_input_tensor_by_name,
)
from triton_python_backend_utils.responses import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceResponseSender,
    TritonError,
    TritonModelException,
    get_output_tensor_by_name,
)
from triton_python_backend_utils.tensors import (
    NUMPY_TO_TRITON_TYPE,
    TRITON_STRING_TO_NUMPY,
    TRITON_TO_NUMPY_TYPE,
    Tensor,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

__all__ = [
    "HOST",
    "NUMPY_TO_TRITON_TYPE",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "TRITON_TO_NUMPY_TYPE",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
