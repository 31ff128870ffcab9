"""Bodies to tensors and back: one module for each encoding.

`model` composes all of them. The way in: `media` (which encoding), `json_text`,
`oip_msgpack` or `npy` (the bytes to a document), `document` (its rules), `inputs` with
`shapes` and `elements` (tensors). The way out: `outputs` (the constant pieces and the
numbers), and `oip_json`, `oip_msgpack` or `npy`.

Runs in the gateway process, on its event loop. May import `config`, `observe` and the
ground.
"""

from app.codec.messages import Encoding, InferRequest, NanPolicy, Response
from app.codec.model import ModelCodec

__all__ = ["Encoding", "InferRequest", "ModelCodec", "NanPolicy", "Response"]
