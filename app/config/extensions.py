"""The extensions in the answer of `/v2`: the supported ones, by Triton's names."""

from __future__ import annotations

ALWAYS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
    "trace",
)
SHARED_MEMORY = "system_shared_memory"


def check_extensions(chosen: str) -> None:
    """Check a choice of extensions, separated by commas.

    Raises ValueError for an unsupported one: listing it would help no client.
    """
    known = (*ALWAYS, SHARED_MEMORY)
    unknown = [name for name in split_extensions(chosen) if name not in known]
    if unknown:
        msg = (
            f"extensions {unknown} are not supported; known extensions are "
            f"{', '.join(known)}"
        )
        raise ValueError(msg)


def split_extensions(chosen: str) -> list[str]:
    return [name.strip() for name in chosen.split(",") if name.strip()]


def listed_extensions(chosen: str, *, shared_memory: bool) -> list[str]:
    """Return the extensions for the answer of `/v2`: all supported ones, or the chosen
    ones.
    """
    working = [*ALWAYS, *[SHARED_MEMORY] * shared_memory]
    names = split_extensions(chosen)
    return [name for name in working if not names or name in names]
