"""`PythonOptions`: the interpreter and the environment of a Python model's process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from engine.errors import InvalidConfig
from engine.owner import environment

#: The entry point group of the module that runs Python models in their processes
#: (`engine.worker.python_kind.PythonKind`). Its entry point is named `python`.
#: `_STARTER` is the module whose file another interpreter starts with. The others are
#: packages that the module needs there.
GROUP = "popgate.python_processes"
_STARTER = "other_interpreter"
#: The packages of the core that another interpreter borrows.
_LENT = ("engine", "popef_io", "popgate")
NO_PLUGIN = f"no plugin that runs Python models is installed (entry point of {GROUP})"
#: The variables that tell libraries how many threads they may have.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: Variables of the gateway that a model must not see.
_SECRETS = ("POPGATE_API_KEY", "POPGATE_RESTRICTED_API")
#: Variables of this interpreter's environment, which another interpreter must not
#: inherit.
_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def device_process() -> list[str]:
    """Return the command that starts a device process with this interpreter, without
    its arguments.
    """
    # Collecting garbage during the imports would take a tenth of the start-up time.
    start = (
        "import gc; gc.disable(); from engine.worker.device_process import run; run()"
    )
    return [sys.executable, "-P", "-c", start]


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """Options for starting the process of a Python model.

    `label` names the model in the log. `interpreter` is a path (empty: this process's).
    `environment` overrides our variables. `folder` is the working folder (empty: ours).
    The process may use `memory` bytes (0: no limit), and `start_timeout` seconds until
    its first answer.
    """

    label: str = "model"
    interpreter: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    memory: int = 0
    start_timeout: float = 60.0

    def command(self) -> list[str]:
        """Return the command that starts `engine.worker.device_process`, without its
        arguments. Raises InvalidConfig if no plugin runs Python models.
        """
        module, lent = _kind()
        kind = ["--python", module, "--memory", str(self.memory)]
        if self.interpreter:
            return [self.interpreter, "-P", _starter(), json.dumps(lent), *kind]
        return [*device_process(), *kind]

    def variables(self, threads: int) -> dict[str, str]:
        """Return the environment of the process. It limits libraries to this many
        threads.
        """
        inherited = environment()
        for name in (*_SECRETS, *(_INTERPRETER if self.interpreter else ())):
            inherited.pop(name, None)
        counts = dict.fromkeys(_THREADS, str(threads))
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        return {**counts, **unbuffered, **inherited, **self.environment}


@cache
def _kind() -> tuple[str, Mapping[str, str]]:
    """Return the module that runs Python models, and the folders of the packages that
    another interpreter borrows.
    """
    modules = {point.name: point.value for point in entry_points(group=GROUP)}
    modules.pop(_STARTER, None)
    if "python" not in modules:
        raise InvalidConfig(NO_PLUGIN)
    packages = (module.partition(".")[0] for module in modules.values())
    lent = {name: folder_of(name, GROUP) for name in (*_LENT, *packages)}
    return modules["python"], lent


@cache
def _starter() -> str:
    """Return the file with which another interpreter starts."""
    for point in entry_points(group=GROUP, name=_STARTER):
        return str(point.load().__file__)
    raise InvalidConfig(f"the plugin has no entry point {_STARTER} of {GROUP}")


def folder_of(package: str, group: str) -> str:
    """Return the folder that a package of an entry point is in, without importing the
    package. Raises InvalidConfig if the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise InvalidConfig(
            f"package {package}, an entry point of {group}, is not installed"
        )
    return str(Path(spec.origin).parent.parent)
