"""The processes that decode pictures, as the gateway sees them.

Belongs to the event loop's thread. If a picture waits and no process is free, another
one is started, up to `MOST`. A process decodes one picture at a time. If the process
dies, or is killed because it takes too long, its picture fails, and the next picture
starts another.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Final

from app.errors import HttpError, InvalidTensor
from popgate_images.plan import DecodePlan
from popgate_images.wire import MOST_WORDS, NUMBERS, REPLY, REQUEST

#: Most decoding processes. They share the processor with the model.
MOST: Final = max(1, min(4, (os.cpu_count() or 1) // 2))
#: Additional seconds for the first picture of a process, which imports its libraries
#: first.
_START: Final = 30.0


class DecoderLost(Exception):
    """The process ended before its answer."""


class Decoder:
    """One process, and the socket to it."""

    def __init__(self) -> None:
        """Start the process. Raises OSError if the system has no room for it."""
        ours, theirs = socket.socketpair()
        with ExitStack() as failing, theirs:
            failing.enter_context(ours)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "popgate_images.decoder_process",
                 str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            failing.pop_all()
        ours.setblocking(False)
        self._socket = ours
        self.is_new = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended, for example for lack of memory."""
        return self._process.poll() is not None

    async def decode(self, raw: bytes, written: bytes, plan: DecodePlan) -> bytes:
        """Return the numbers of a picture.

        Raises InvalidTensor if it cannot be decoded, and DecoderLost.
        """
        loop = asyncio.get_running_loop()
        try:
            head = REQUEST.pack(len(written), len(raw)) + written
            await loop.sock_sendall(self._socket, head)
            await loop.sock_sendall(self._socket, raw)
            kind, size = REPLY.unpack(await self._take(REPLY.size))
            if size > (plan.nbytes if kind == NUMBERS else MOST_WORDS):
                raise DecoderLost
            answer = await self._take(size)
        except OSError:
            raise DecoderLost from None
        self.is_new = False
        if kind != NUMBERS:
            raise InvalidTensor(answer.decode("utf-8", "replace"))
        if size != plan.nbytes:
            raise DecoderLost
        return answer

    async def _take(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = await loop.sock_recv_into(self._socket, view[at:])
            if not got:
                raise DecoderLost
            at += got
        return bytes(data)

    def kill(self) -> None:
        """Kill the process. Safe to call again."""
        self._socket.close()
        with suppress(OSError):
            self._process.kill()
        self._process.wait()  # returns at once, because the process was killed

    def __repr__(self) -> str:
        return f"<Decoder pid {self._process.pid}>"


class Decoders:
    """All decoding processes of this gateway."""

    def __init__(self) -> None:
        self._free: list[Decoder] = []
        self._places = asyncio.Semaphore(MOST)
        self._under_way: set[asyncio.Task[bytes]] = set()

    async def decode(self, raw: bytes, written: bytes, plan: DecodePlan) -> bytes:
        """Return the numbers of a picture. Raises InvalidTensor and HttpError.

        If the caller is cancelled during decoding, the process finishes the picture and
        takes the next.
        """
        await self._places.acquire()
        task = asyncio.get_running_loop().create_task(self._run(raw, written, plan))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[bytes]) -> None:
        self._under_way.discard(task)
        self._places.release()
        if not task.cancelled():
            # retrieve the exception here, because the caller may be cancelled
            task.exception()

    async def _run(self, raw: bytes, written: bytes, plan: DecodePlan) -> bytes:
        while self._free and self._free[-1].has_ended:
            self._free.pop().kill()
        decoder = self._free.pop() if self._free else None
        if decoder is None:
            try:
                decoder = await asyncio.to_thread(Decoder)
            except OSError as error:
                msg = f"no process that decodes pictures could be started: {error}"
                raise HttpError(503, msg, "decoder_lost") from None
        patience = plan.timeout + (_START if decoder.is_new else 0.0)
        is_well = False
        try:
            async with asyncio.timeout(patience):
                found = await decoder.decode(raw, written, plan)
            is_well = True
        except InvalidTensor:
            is_well = True
            raise
        except TimeoutError:
            msg = (
                f"decoding took more than {plan.timeout:g} s (timeout in the section "
                "[image])"
            )
            raise HttpError(422, msg, "picture_takes_too_long") from None
        except DecoderLost:
            msg = "the process that decodes pictures ended while it had this one"
            raise HttpError(503, msg, "decoder_lost") from None
        finally:
            if is_well:
                self._free.append(decoder)
            else:
                decoder.kill()
        return found

    def __repr__(self) -> str:
        return f"<Decoders {len(self._free)} free of at most {MOST}>"


_decoders: dict[asyncio.AbstractEventLoop, Decoders] = {}


def decoders() -> Decoders:
    """Return the decoding processes of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _decoders.get(loop)
    if found is None:
        found = _decoders[loop] = Decoders()
    return found
