"""Clients of inference servers: NumPy in, NumPy out.

A core without input or output makes the requests and interprets the answers. Two thin
drivers send it, blocking (`Client`) and in an event loop (`AsyncClient`). Runs in the
user's program. May import no other package of PopGate.
"""

from __future__ import annotations

from popgate_client.async_client import AsyncClient, AsyncModel, AsyncSequence
from popgate_client.client import Client, Model, Sequence
from popgate_client.encodings import CONTENT_TYPES, Encoding, Outputs
from popgate_client.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
)
from popgate_client.steps import without_credentials
from popgate_client.tensors import DTYPES, Array, Tensor, array_of, tensor_of
from popgate_client.texts import Label, Ranked
from popgate_client.tls import default_context

__all__ = [
    "CONTENT_TYPES",
    "DTYPES",
    "Array",
    "AsyncClient",
    "AsyncModel",
    "AsyncSequence",
    "AuthenticationError",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Encoding",
    "InvalidRequest",
    "Label",
    "Model",
    "NotFound",
    "Outputs",
    "Ranked",
    "Sequence",
    "ServerError",
    "Tensor",
    "Unavailable",
    "array_of",
    "default_context",
    "tensor_of",
    "without_credentials",
]
