"""Pictures of several requests that wait for the same decoding processes."""

from __future__ import annotations

import asyncio
from typing import Any

from PIL import Image

from plugins.images.tests.test_picture import encoded, model
from popgate_images.config import ImageConfig
from popgate_images.decoders import MOST, decoders
from popgate_images.scheduler import PictureScheduler


def test_a_request_with_many_pictures_lets_others_in_between() -> None:
    nothing: Any = None
    scheduler = PictureScheduler(model(), nothing, ImageConfig())
    large = encoded(Image.new("RGB", (1500, 1500), "red"))
    small = encoded(Image.new("RGB", (6, 4), "green"))

    async def ask() -> None:
        many = asyncio.ensure_future(scheduler._decode([large] * 8 * MOST))
        await asyncio.sleep(0)
        one = await scheduler._decode([small])
        held_up = many.done()
        assert (await many).shape == (8 * MOST, 3, 4, 6)
        for process in decoders()._free:
            process.kill()
        assert one.shape == (1, 3, 4, 6)
        assert not held_up

    asyncio.run(ask())
