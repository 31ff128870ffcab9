"""Plugins: capabilities that live in packages of their own, found by entry points.

    [project.entry-points."popgate.model_formats"]
    demo = "demo_plugin:FORMAT"

The server asks for the objects of a group and never names a plugin.
docs/how-to/write-a-plugin.md has the groups and what their objects must be able to do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final

logger = logging.getLogger(__name__)

#: Commands of `popgate` (a tuple of `app.cli.plugin_commands.PluginCommand`).
COMMANDS: Final = "popgate.commands"
#: Kinds of files besides ONNX that `popgate compile` accepts: modules with `split_name`
#: and `compile_program` (docs/how-to/write-a-plugin.md).
EXECUTABLES: Final = "popgate.executables"
#: Kinds of URLs that models are downloaded from
#: (`app.repository.model_sources.ModelSource`).
MODEL_SOURCES: Final = "popgate.model_sources"
#: Kinds of model folders (`app.repository.formats.ModelFormat`).
MODEL_FORMATS: Final = "popgate.model_formats"
#: Decoders before a model of any kind (`app.repository.formats.InputDecoder`).
INPUT_DECODERS: Final = "popgate.input_decoders"
#: Routes of the server (`app.api.plugin_routes.PluginRoutes`).
ROUTES: Final = "popgate.routes"


@cache
def plugins(group: str) -> Mapping[str, Any]:
    """Return the objects of an entry point group by name, in the order of the names.

    A plugin that cannot be imported is logged and left out, and the server goes on
    without its capability. The result is kept, so plugins installed later are not
    found. For all threads.
    """
    found: dict[str, Any] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            found[point.name] = point.load()
        except Exception as error:
            logger.warning(
                "plugin %s (%s) cannot be imported and is ignored: %s: %s",
                point.name,
                point.value,
                type(error).__name__,
                error,
            )
    return MappingProxyType(found)


def with_sections() -> Mapping[str, Any]:
    """Return the plugins that have a section in a model's configuration, by name."""
    return {**plugins(INPUT_DECODERS), **plugins(MODEL_FORMATS)}
