"""Bodies to tensors and back: one module for each encoding.

The way in: `media` (which encoding), `oip_json`, `oip_msgpack` or `npy` (the bytes to a
document), `document` (its rules), `inputs` with `shapes` and `elements` (tensors). The
way out: `outputs` (the constant pieces and the numbers) and the same three encodings.

Runs in the gateway process, on its event loop. May import `config`, `observe` and the
ground.
"""

from app.codec.messages import Encoding, InferRequest, NanPolicy, Response
from app.codec.model import ModelCodec

__all__ = [
    "Encoding",
    "InferRequest",
    "ModelCodec",
    "NanPolicy",
    "Response",
]
