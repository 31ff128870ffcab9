"""Profiles: settings and models that belong together, by one name.

`popgate serve --profile triton` has the models and defaults that the example clients
and test scripts of the Triton Inference Server expect. A profile sets defaults: options
and environment variables override them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.about import VERSION
from app.config.profiles import triton

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Defaults of settings, and a model repository that is written when needed.

    `source` is the file whose text decides what `build` writes.
    """

    name: str
    settings: Mapping[str, Any]
    build: Callable[[Path], None]
    source: Path

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


PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "triton": Profile(
            "triton", triton.SETTINGS, triton.write_models, Path(triton.__file__)
        )
    }
)
