"""The messages between the gateway and a decoding process."""

from __future__ import annotations

import struct
from typing import Final

#: Of a request: bytes of the plan, and of the picture behind it.
REQUEST: Final = struct.Struct("<II")
#: Of a reply: whether numbers follow (else words), and how many bytes.
REPLY: Final = struct.Struct("<BI")
NUMBERS: Final = 1
WORDS: Final = 0
#: Of words.
MOST_WORDS: Final = 1 << 16
