"""`MissingModels`: loads of the models that ensembles need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class MissingModels:
    """Passes the requests of ensembles on to a loader of models.

    An ensemble is loaded by the loader that loads its members too. So both exist before
    the loader registers here.
    """

    def __init__(self) -> None:
        self._loaders: list[Callable[[str], Awaitable[None]]] = []

    def register(self, load: Callable[[str], Awaitable[None]]) -> None:
        """Let `load` load missing models from now on."""
        self._loaders.append(load)

    async def load(self, name: str) -> None:
        """Load a model; return when it is loaded or has failed to load.

        Without a loader, nothing happens.
        """
        for load in self._loaders:
            await load(name)
