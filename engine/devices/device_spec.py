"""Requirements on a device: units, options, software model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InvalidConfig
from popef_io import Model

#: PopGate's own device option: the threads that a graph may use. All other options are
#: Poplar's. They are for other hardware and have no effect.
OPTION_THREADS = "popgate.threads"
MAX_THREADS = 1024
#: The existing IPU versions: Mk1, Mk2 (GC200 and Bow), Mk2 with FP8 (C600).
IPU_VERSIONS = (1, 2, 21)
#: The original's value for an architecture that it does not know.
UNKNOWN_VERSION = -1
#: Tiles of an IPU.
TILES = 1472


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Units that form one device, and the device options of a model or a caller.

    Raises InvalidConfig for an invalid number of threads.
    """

    num_ipus: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.threads is None and OPTION_THREADS in self.options:
            raise InvalidConfig(
                f"device option {OPTION_THREADS} must be a number from 1 to "
                f"{MAX_THREADS}, got {self.options[OPTION_THREADS]!r}"
            )

    @classmethod
    def of(
        cls, wanted: int | Model, options: Mapping[str, str] | None = None
    ) -> DeviceSpec:
        """Make the requirements of a model from its metadata, or of a number of units
        from `options`.
        """
        if isinstance(wanted, Model):
            metadata = wanted.metadata
            flags = {option.name: option.value for option in metadata.device_options}
            return cls(max(1, metadata.num_ipus), flags)
        return cls(wanted, options or {})

    @property
    def threads(self) -> int | None:
        """Return the threads that the options request; None if they request none."""
        text = str(self.options.get(OPTION_THREADS, ""))
        if not text.isdecimal() or len(text) > 4:
            return None
        return int(text) if 1 <= int(text) <= MAX_THREADS else None


def checked_ipu_model(num_ipus: int, ipu_version: int, tiles: int) -> None:
    """Raise InvalidConfig for a software model of hardware that does not exist."""
    if not 1 <= num_ipus <= MAX_THREADS:
        raise InvalidConfig(f"num_ipus must be from 1 to {MAX_THREADS}, got {num_ipus}")
    if ipu_version not in IPU_VERSIONS:
        raise InvalidConfig(
            f"ipu_version must be one of {list(IPU_VERSIONS)}, got {ipu_version}"
        )
    if not 0 <= tiles <= TILES:
        raise InvalidConfig(
            f"tiles_per_ipu must be from 0 (all) to {TILES}, got {tiles}"
        )
