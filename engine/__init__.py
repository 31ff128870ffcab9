"""The engine: devices, rings, queues, sessions and the model runner.

    from engine import ModelRunner

    with ModelRunner("digits.popef") as runner:
        print(runner.execute({"image": image})["probabilities"])

No web framework and no event loop in here; see docs/explanation/architecture.md. All
names are of
`engine.public`, which is imported with the first that is asked for: a device process
asks for none, and starts sooner for it.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine import logs as _logs  # noqa: F401 - as the environment says
from engine import telemetry as _telemetry  # noqa: F401 - must come first

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
        if name == "__all__" or name in getattr(public, "__all__", ()):
            return globals().setdefault(name, getattr(public, name))
        if find_spec(module) is not None:
            return import_module(module)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(f"{__name__}.public").__all__})
