"""The entry point of this plugin (`app.repository.formats.InputDecoder`)."""

from __future__ import annotations

from app.repository.formats import FormatScheduler
from app.serving.runner import Runner
from app.spec import ModelSpec
from popgate_images.config import ImageConfig
from popgate_images.scheduler import PictureScheduler


class ImageDecoder:
    """Models whose ``config.toml`` has a section ``[image]``."""

    section = ImageConfig

    def scheduler(
        self, spec: ModelSpec, runner: Runner, options: ImageConfig
    ) -> FormatScheduler:
        return PictureScheduler(spec, runner, options)


DECODER = ImageDecoder()
