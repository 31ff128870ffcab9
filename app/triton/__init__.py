"""Triton's model configuration (``config.pbtxt``), read and translated into ours."""

from app.triton.declared import DeclaredTensor, DeclaredTensors
from app.triton.graph_changes import GraphChanges, input_defaults
from app.triton.reading import (
    PBTXT_NAME,
    TritonConfigError,
    read_json_config,
    read_pbtxt,
)
from app.triton.reshape import Reshapes
from app.triton.translation import Translation, translate

__all__ = [
    "PBTXT_NAME",
    "DeclaredTensor",
    "DeclaredTensors",
    "GraphChanges",
    "Reshapes",
    "Translation",
    "TritonConfigError",
    "input_defaults",
    "read_json_config",
    "read_pbtxt",
    "translate",
]
