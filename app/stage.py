"""`Stage`: how far the start or the end of a server is."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The phases of a server, in the words of its answers."""

    STARTING = "starting"
    WAITING = "waiting for a device"
    LOADING = "loading models"
    FAILED = "failed to start"
    SERVING = "serving"
    ENDING = "shutting down"


#: Phases of a server before it serves.
_BEFORE = frozenset({Phase.STARTING, Phase.WAITING, Phase.LOADING})


class Stage:
    """The present phase of a server, and what it has passed."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        #: Whether everything was attached and loaded once. Startup probes ask for this.
        self.has_started = False
        #: Whether clients were told to go elsewhere, before the server ends.
        self.is_drained = False

    @property
    def is_starting(self) -> bool:
        return self.phase in _BEFORE

    @property
    def is_serving(self) -> bool:
        return self.phase is Phase.SERVING

    @property
    def is_ending(self) -> bool:
        return self.phase is Phase.ENDING

    def enter(self, phase: Phase) -> None:
        """Enter a phase. May be called from a signal handler."""
        self.phase = phase
        self.has_started = self.has_started or phase is Phase.SERVING

    def drain(self) -> None:
        """Stop being ready but still answer requests."""
        self.is_drained = True

    def __repr__(self) -> str:
        return f"<Stage {self.phase}>"
