"""Plugins: capabilities that live in packages of their own, found by entry points.

    [project.entry-points."popgate.model_formats"]
    demo = "demo_plugin:FORMAT"

The server asks for the objects of a group and never names a plugin.
docs/how-to/write-a-plugin.md has the groups and what their objects must be able to do.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final

logger = logging.getLogger(__name__)

#: Commands of `popgate` (a tuple of `app.cli.plugin_commands.PluginCommand`).
COMMANDS: Final = "popgate.commands"
#: The compiler of ONNX models, under the name `onnx`
#: (`app.repository.compilers.Compiler`).
COMPILERS: Final = "popgate.compilers"
#: Configuration files of other servers, each under the file's name
#: (`app.config.config_formats.ConfigFormat`).
CONFIG_FORMATS: Final = "popgate.config_formats"
#: What runs ensembles (`app.serving.ensemble_kind.EnsembleKind`).
ENSEMBLES: Final = "popgate.ensembles"
#: Functions that watch an event loop for the file that `POPGATE_LOOP_WATCH` names. They
#: return an object with `stop`.
LOOP_WATCHES: Final = "popgate.loop_watches"
#: The gateway's end of calls from Python models to other models
#: (`app.serving.calls.calls_plugin.MakeModelCalls`).
MODEL_CALLS: Final = "popgate.model_calls"
#: Kinds of URLs that models are downloaded from
#: (`app.repository.model_sources.ModelSource`).
MODEL_SOURCES: Final = "popgate.model_sources"
#: Kinds of model folders (`app.repository.formats.ModelFormat`).
MODEL_FORMATS: Final = "popgate.model_formats"
#: Decoders before a model of any kind (`app.repository.formats.InputDecoder`).
INPUT_DECODERS: Final = "popgate.input_decoders"
#: A function that reads the model in a Python file
#: (`app.repository.python_models.ReadPythonModel`).
PYTHON_FILES: Final = "popgate.python_files"
#: Several processes that accept the connections of a server: a function of the settings
#: and the listeners that returns `app.run.ServerProcesses`.
PROCESSES: Final = "popgate.processes"
#: Settings, models and statuses for clients of another server
#: (`app.config.profiles.Profile`).
PROFILES: Final = "popgate.profiles"
#: Functions that return an `app.observe.journal.Recorder`, or None if none is wanted.
SPANS: Final = "popgate.spans"
#: Functions that return an `app.observe.tracing.Tracing`. Their arguments are the
#: settings, and the nanoseconds from the monotonic clock to the time since 1970.
TRACERS: Final = "popgate.tracers"
#: Functions of the settings that return `app.regions.Regions`.
REGIONS: Final = "popgate.regions"
#: What runs models with a state, and generators
#: (`app.serving.stateful.StatefulModels`).
STATEFUL_MODELS: Final = "popgate.stateful_models"
#: Routes of the server (`app.api.plugin_routes.PluginRoutes`).
ROUTES: Final = "popgate.routes"


#: All entry points, read once: reading those of a group takes as long.
_all_points = cache(entry_points)


@cache
def _points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name, in the order of the names.

    The result is kept, so plugins installed later are not found.
    """
    points = sorted(_all_points().select(group=group), key=lambda point: point.name)
    return MappingProxyType({point.name: point for point in points})


def plugin_names(group: str) -> Collection[str]:
    """Return the names of a group's plugins in order; import none of them."""
    return _points(group).keys()


@cache
def plugin(group: str, name: str) -> Any:
    """Return the object of a plugin, or None if it cannot be imported.

    The server logs that and goes on without the plugin's capability. For all threads.
    """
    point = _points(group)[name]
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a script may call sys.exit
        logger.warning(
            "plugin %s (%s) cannot be imported and is ignored: %s: %s",
            point.name,
            point.value,
            type(error).__name__,
            error,
        )
        return None


@cache
def plugins(group: str) -> Mapping[str, Any]:
    """Return the objects of an entry point group by name, in the order of the names.

    A plugin that cannot be imported is left out. For all threads.
    """
    found = {name: plugin(group, name) for name in plugin_names(group)}
    return MappingProxyType({k: one for k, one in found.items() if one is not None})


def ignore_plugin(group: str, name: str, expected: str, got: object) -> None:
    """Log that a plugin is not what its group expects."""
    value = _points(group)[name].value
    text = "plugin %s (%s) is ignored: expected %s, got %r"
    logger.warning(text, name, value, expected, got)


def first_plugin(group: str) -> Any | None:
    """Return the first object of an entry point group whose plugins exclude each other;
    None if no plugin is there. For all threads.
    """
    return next(iter(plugins(group).values()), None)


def with_sections() -> Mapping[str, Any]:
    """Return the plugins that have a section in a model's configuration, by name."""
    return {**plugins(INPUT_DECODERS), **plugins(MODEL_FORMATS)}
