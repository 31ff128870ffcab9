"""The entry point of ``config.pbtxt`` (`app.config.config_formats.ConfigFormat`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config.config_formats import Translation
from popgate_triton.reading import parse_document, read_pbtxt
from popgate_triton.translation import translate


class Pbtxt:
    """Triton's model configuration."""

    def read(self, path: Path, name: str) -> Translation:
        return translate(read_pbtxt(path), name)

    def requested(
        self, document: Mapping[str, Any], name: str, label: str
    ) -> Translation:
        message, ours = parse_document(document)
        found = translate(message, name, label, partial=True)
        return Translation(
            {**found.options, **ours}, found.declared, found.filename, found.notes
        )


FORMAT = Pbtxt()
