"""Triton's model configuration (``config.pbtxt``), read and translated into ours."""

from app.config.triton.declared import DeclaredTensor, DeclaredTensors
from app.config.triton.graph_changes import GraphChanges, input_defaults
from app.config.triton.reading import (
    PBTXT_NAME,
    TritonConfigError,
    read_json_config,
    read_pbtxt,
)
from app.config.triton.reshape import Reshapes
from app.config.triton.translation import Translation, translate

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
