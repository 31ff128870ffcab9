"""An image file in, a digit out: decoded and resized here, told apart by another model.

Needs Pillow, and the model `digits` beside it.
"""

import asyncio
import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from popgate import InvalidInput, Model


class ReadDigit(Model):
    inputs = {"file": "BYTES[-1]"}
    outputs = {"label": "INT64[-1]", "probability": "FP32[-1]"}
    batching = True

    def load(self, context):
        self.digits = context.models["digits"]

    async def __call__(self, file):
        images = [asyncio.to_thread(decode, each) for each in file]
        pixels = np.stack(await asyncio.gather(*images))
        found = await self.digits.call_async(image=pixels)
        best = found["probabilities"].max(1)
        return {"label": found["digit"], "probability": best}


def decode(raw):
    """Dark on white in a file; 0 to 16, bright is ink, for the model."""
    try:
        image = Image.open(io.BytesIO(raw)).convert("L").resize((8, 8))
    except UnidentifiedImageError as error:
        raise InvalidInput("this is no image that Pillow knows") from error
    return (255 - np.asarray(image, np.float32))[None] / 255 * 16
