"""The process that decodes pictures: `python -m popgate_images.decoder_process FD`.

It reads pictures from a socket and answers with numbers, one after the other. Its
memory is limited, and it opens no files. It ends itself if a picture takes too long, so
it does not outlive a killed server.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import socket
import sys
from typing import Final

import msgpack
from PIL import Image

from popgate_images.picture import BadPicture, decode
from popgate_images.plan import DecodePlan
from popgate_images.wire import NUMBERS, REPLY, REQUEST, WORDS

#: Bytes of memory in addition to the libraries: 200 million pixels as RGB, resized.
_MEMORY: Final = 1 << 30
_GRACE: Final = 2


def _take(sock: socket.socket, size: int) -> bytes:
    """Return the next bytes; EOFError if the peer has closed."""
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = sock.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return bytes(data)


def _serve(sock: socket.socket) -> None:
    plans: dict[bytes, DecodePlan] = {}
    while True:
        plan_size, size = REQUEST.unpack(_take(sock, REQUEST.size))
        written = _take(sock, plan_size)
        plan = plans.get(written)
        if plan is None:
            plans.clear()
            plan = plans[written] = DecodePlan.from_message(msgpack.unpackb(written))
        raw = _take(sock, size)
        signal.alarm(math.ceil(plan.timeout) + _GRACE)  # the alarm ends the process
        try:
            kind, answer = NUMBERS, decode(raw, plan)
        except BadPicture as error:
            kind, answer = WORDS, str(error).encode("utf-8", "backslashreplace")
        signal.alarm(0)
        sock.sendall(REPLY.pack(kind, len(answer)) + answer)


def main() -> None:
    """Serve the socket until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # the plan has the limit
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        sock.setblocking(True)
        with contextlib.suppress(EOFError, OSError):
            _serve(sock)
    os._exit(0)


if __name__ == "__main__":
    main()
