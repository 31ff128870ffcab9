"""The decoding processes as the gateway sees them, where the system has no room."""

from __future__ import annotations

import asyncio
import resource

import msgpack
import pytest

from app.errors import HttpError
from plugins.images.tests.test_picture import encoded, noise, plan
from popgate_images.decoders import Decoders


def test_a_process_that_cannot_be_started_fails_its_picture_only() -> None:
    drawn, raw = plan(), encoded(noise())
    written = msgpack.packb(drawn.message())

    async def ask() -> bytes:
        processes = Decoders()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(HttpError, match=r"could be started.*Too many") as lost:
                await processes.decode(raw, written, drawn)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (lost.value.status, lost.value.code) == (503, "decoder_lost")
        found = await processes.decode(raw, written, drawn)
        for process in processes._free:
            process.kill()
        return found

    assert len(asyncio.run(ask())) == drawn.nbytes
