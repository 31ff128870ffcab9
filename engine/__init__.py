"""The engine: devices, rings, and the model runner.

    from engine import ModelRunner

    with ModelRunner("digits.popef") as runner:
        print(runner.execute({"image": image})["probabilities"])

The engine uses no web framework and no event loop; see
docs/explanation/architecture.md. All names come from `engine.public`, which is imported
when a name is first used. A device process uses none of these names, so it starts
faster.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine import logs as _logs  # noqa: F401 - as the environment says
from engine import telemetry as _telemetry  # noqa: F401 - must come first

#: Entry point group of plugin modules. This package also offers the names in their
#: `__all__`, for programs that import those names from here.
NAMES = "popgate.engine_names"

if TYPE_CHECKING:
    from engine.public import *  # noqa: F403
    from engine.public import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        module = f"{__name__}.{name}"
        public = sys.modules.get(f"{__name__}.public")
        if public is None:
            if find_spec(module) is not None:
                return import_module(module)
            public = import_module(f"{__name__}.public")
        if name == "__all__":
            found = [*public.__all__, *(n for m in _handed_on() for n in m.__all__)]
            return globals().setdefault(name, found)
        if name in getattr(public, "__all__", ()):
            return globals().setdefault(name, getattr(public, name))
        if find_spec(module) is not None:
            return import_module(module)
        for other in () if name.startswith("_") else _handed_on():
            if name in other.__all__:
                return globals().setdefault(name, getattr(other, name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    @cache
    def _handed_on() -> tuple[Any, ...]:
        """Return the modules of plugins whose names this package also offers."""
        from importlib.metadata import entry_points

        return tuple(point.load() for point in entry_points(group=NAMES))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
