"""The messages between the gateway and a decoding process."""

from __future__ import annotations

import struct
from typing import Final

#: Header of a request: bytes of the plan, and of the picture after it.
REQUEST: Final = struct.Struct("<II")
#: Header of a reply: whether numbers follow (else an error's text), and their bytes.
REPLY: Final = struct.Struct("<BI")
NUMBERS: Final = 1
WORDS: Final = 0
#: Most bytes of an error's text.
MOST_WORDS: Final = 1 << 16
