"""`ModelHealth`: what the devices of a model find wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import EngineError
from engine.runner.replica_set import ReplicaSet


class ModelHealth:
    """A model from the view of its devices (`DeviceUser`): they load it again, fail
    its runs, and find it at fault.
    """

    def __init__(self, name: str, replicas: ReplicaSet) -> None:
        self.name = name
        #: Whether the model is not served yet. One failed run then fails the model.
        self.is_warming_up = False
        self._replicas = replicas
        # Its devices call these (`DeviceUser`).
        self.reload = replicas.reload
        self.run_limit = replicas.run_limit
        self.fail_started = replicas.fail_started
        self._on_failure: Callable[[EngineError], None] | None = None

    def on_failure(self, callback: Callable[[EngineError], None]) -> None:
        """Call `callback` when the model is found at fault, in the thread that finds
        it. `ModelRunner.failure` tells whether it was at fault before.
        """
        self._on_failure = callback

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Mark the model as not served yet, while the block runs. Then one failed run
        keeps it from being served.
        """
        self.is_warming_up = True
        try:
            yield
        finally:
            self.is_warming_up = False

    # -- for its devices

    def fail(self, error: EngineError) -> None:
        """Take no more requests, because the model was found at fault. This is
        permanent. Fail the requests in flight, and call the callback of `on_failure`.
        """
        self._replicas.fail(error)
        tell = self._on_failure  # another thread may call `close`, which removes it
        if tell is not None:
            tell(error)

    # -- its beginning and end

    def register(self) -> None:
        """Let the devices of the model judge it."""
        for device in dict.fromkeys(self._replicas.devices):
            device.models.register(self)

    def unregister(self) -> None:
        """Leave the devices of the model."""
        for device in self._replicas.devices:
            device.models.unregister(self)

    def close(self) -> None:
        """Forget the callback.

        The callback usually refers to the owner of the runner. That cycle would keep
        the model's mapped files until the next garbage collection.
        """
        self._on_failure = None

    def __repr__(self) -> str:
        return f"<ModelHealth of {self.name!r}, {self._replicas!r}>"
