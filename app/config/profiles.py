"""Profiles: settings, models and statuses that belong together, by one name.

Plugins provide them, for clients of other servers. `popgate serve --profile NAME` sets
defaults: options and environment variables override them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.about import VERSION
from app.errors import ErrorStatuses
from app.plugins import PROFILES, plugin, plugin_names


@dataclass(frozen=True, slots=True)
class Profile:
    """Defaults of settings, and a model repository that is written when needed.

    `source` is the file whose text decides what `build` writes. `statuses` apply if the
    setting `error_statuses` is the profile's name. An object of the entry point group
    `popgate.profiles`.
    """

    name: str
    settings: Mapping[str, Any]
    build: Callable[[Path], None]
    source: Path
    statuses: ErrorStatuses

    def repository(self, cache_dir: Path) -> Path:
        """Return the folder with the models; write it in `cache_dir` if it is missing.

        If two processes write it at the same time, both do the work. They end with the
        same folder, because a finished folder is renamed into its place. Raises
        OSError.
        """
        digest = hashlib.sha256(VERSION.encode() + self.source.read_bytes())
        target = cache_dir / "profiles" / f"{self.name}-{digest.hexdigest()[:16]}"
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{self.name}-", dir=target.parent))
        try:
            made.chmod(0o755)
            self.build(made)
            os.rename(made, target)
        except OSError:
            if not target.is_dir():
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return target

    def __repr__(self) -> str:
        return f"<Profile {self.name}>"


def profile_named(name: str) -> Profile:
    """Return the profile of a plugin. Raises ValueError if there is none."""
    found: Profile | None = None
    if name in plugin_names(PROFILES):
        found = plugin(PROFILES, name)
    if found is None:
        known = ", ".join(plugin_names(PROFILES)) or "none"
        raise ValueError(f"there is no profile {name!r:.100}; installed are: {known}")
    return found
