"""The scheduler in front of a model that takes pictures.

It decodes files, several at a time, and passes their numbers to the model. Requests
with numbers pass unchanged. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import msgpack

from app.codec.messages import InferRequest
from app.codec.outputs import strings_of
from app.errors import HttpError, InvalidTensor
from app.serving.pending import Pending
from app.serving.runner import Runner, Submitted
from app.spec import ModelSpec, TensorSpec
from engine import EngineError, Tensor
from popef_io import DataType
from popgate_images.config import ImageConfig
from popgate_images.decoders import MOST, decoders
from popgate_images.planning import input_of, plan_for

_NEEDS: Final = (
    "the section [image] needs Pillow: pip install 'popgate[images]', or pip install "
    "pillow into the environment of the server"
)


class PictureRun(Pending):
    """A request: its pictures are decoded, then the model runs."""

    def __init__(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> None:
        super().__init__(request.inputs, deadline, on_done, request.priority)
        self.decoding: asyncio.Future[Tensor] | None = None
        self.running: Submitted | None = None

    def give_up(self, error: EngineError) -> None:
        if self.decoding is not None:
            self.decoding.cancel()
        if self.running is not None and not self.running.done:
            self.running.abandon(error)


class PictureScheduler:
    """Runs requests to one version of a model that takes pictures."""

    def __init__(self, spec: ModelSpec, runner: Runner, config: ImageConfig) -> None:
        if find_spec("PIL") is None:
            raise ValueError(_NEEDS)
        tensor = input_of(spec, config)
        self.plan = plan_for(spec, tensor, config)
        self._written = msgpack.packb(self.plan.message())
        self._tensor = tensor
        self._config = config
        self._runner = runner
        shape = tensor.shape or ()
        has_rows = spec.is_batched or len(shape) == 4
        files = TensorSpec.make(tensor.name, "BYTES", shape[:1] if has_rows else (1,))
        shown = {o.name: config.top for o in spec.outputs if o.labels and config.top}
        self._shape = shape[1:] if has_rows else shape
        self._has_rows = has_rows
        self.visible = replace(spec, encoded={tensor.name: files}, shown_classes=shown)

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Submitted:
        """Run a request. Raises `InvalidTensor`, `TransferMemoryFull`, and the runner's
        errors.
        """
        given = request.inputs.get(self._tensor.name)
        if given is None or given.data_type is not DataType.STRING:
            return self._runner.submit(
                request.inputs,
                deadline=deadline,
                on_done=on_done,
                priority=request.priority,
            )
        pictures = strings_of(given)
        self._check(pictures)
        if request.count_memory is not None:
            request.count_memory(len(pictures) * self.plan.nbytes)
        run = PictureRun(request, deadline, on_done)
        loop = asyncio.get_running_loop()
        run.decoding = loop.create_task(self._decode(pictures))
        run.decoding.add_done_callback(partial(self._decoded, run))
        return run

    def _check(self, pictures: Sequence[bytes]) -> None:
        config, name = self._config, self._tensor.name
        if len(pictures) > config.max_pictures:
            raise InvalidTensor(
                f"input '{name}' has {len(pictures)} pictures, expected at most "
                f"{config.max_pictures} (max_pictures in the section [image])"
            )
        for number, picture in enumerate(pictures):
            if len(picture) > config.max_bytes:
                raise InvalidTensor(
                    f"picture {number} of input '{name}' has {len(picture)} bytes, "
                    f"expected at most {config.max_bytes} (max_bytes in the section "
                    "[image])"
                )

    async def _decode(self, pictures: Sequence[bytes]) -> Tensor:
        """Return the numbers of all pictures. Raises InvalidTensor and HttpError."""
        waiting = deque(enumerate(pictures))
        parts = [b""] * len(waiting)

        async def decode_next() -> None:
            while waiting:
                number, picture = waiting.popleft()
                try:
                    parts[number] = await self._decode_one(number, picture)
                except Exception:
                    waiting.clear()  # the request has failed
                    raise

        # The places of others come between, however many pictures this request has.
        # Tasks for all of them would take more memory than a small body does.
        ended = await asyncio.gather(
            *[decode_next() for _ in range(min(MOST, len(waiting)))],
            return_exceptions=True,  # those that are decoded now end first
        )
        for one in ended:
            if one is not None:
                raise one
        plan = self.plan
        sides: tuple[int, ...] = (plan.height, plan.width)
        dims = (
            (plan.channels, *sides) if plan.channels_first else (*sides, plan.channels)
        )
        if len(dims) > len(self._shape):  # shades of grey without a channel
            dims = sides
        shape = (len(parts), *dims) if self._has_rows else dims
        return Tensor(self._tensor.data_type, shape, parts, len(parts) * plan.nbytes)

    async def _decode_one(self, number: int, picture: bytes) -> bytes:
        where = f"picture {number} of input '{self._tensor.name}'"
        try:
            return await decoders().decode(picture, self._written, self.plan)
        except InvalidTensor as error:
            raise InvalidTensor(f"{where}: {error}") from None
        except HttpError as error:
            raise HttpError(
                error.status, f"{where}: {error}", error.code, error.headers
            ) from None

    def _decoded(self, run: PictureRun, task: asyncio.Future[Tensor]) -> None:
        if run.done or task.cancelled():
            if not task.cancelled():
                task.exception()
            return
        try:
            run.inputs[self._tensor.name] = task.result()
            running = self._runner.submit(
                run.inputs,
                deadline=run.deadline,
                on_done=partial(self._done, run),
                priority=run.priority,
            )
            if not running.done:
                run.running = running
        except Exception as error:
            run.resolve(error)

    def _done(self, run: PictureRun, submitted: Submitted) -> None:
        run.queue_ns, run.compute_ns = submitted.queue_ns, submitted.compute_ns
        run.batch_rows, run.device_id = submitted.batch_rows, submitted.device_id
        run.outputs = submitted.outputs
        run.resolve(submitted.error)

    def __repr__(self) -> str:
        return f"<PictureScheduler {self.visible.name} {self._tensor.name}>"
