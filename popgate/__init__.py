"""PopGate for Python programs: run models in this process, pack them, call servers.

    from popgate import ModelRunner

    with ModelRunner("model.onnx") as runner:
        print(runner.execute({"x": [[1.0, 2.0]]})["y"])

    from popgate import compile_model

    print(compile_model("model.onnx", "model.popef"))

    from popgate import Client

    with Client("http://127.0.0.1:8000") as client:
        print(client.infer("digits", image=pixels)["digit"])

`popgate` on the command line, and ``python -m popgate``, serve them over HTTP. Special
features (devices, sessions, queues) are in `engine`, the file format in `popef_io`.
Importing this package is cheap: the first name that needs the engine imports it.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from popgate.own import check_packages

if TYPE_CHECKING:
    from engine import DeviceManager, EngineError, InvalidInput, ModelRunnerConfig
    from popgate.client import AsyncClient, Client, ClientError
    from popgate_onnx.compiler import CompileOptions, CompileReport, compile_model
    from popgate_python_interface import Context, Model, route
    from popgate_runtime.runner import ModelRunner, Result

try:
    __version__ = metadata.version("popgate")
except metadata.PackageNotFoundError:  # the source tree is not installed
    __version__ = "0+source"

#: The place of each name. Most are in plugins, and entry points would not do: type
#: checkers do not know their names, and an interpreter that borrows the packages has
#: none.
_PLACES = {
    name: place
    for place, names in {
        "engine": "DeviceManager EngineError InvalidInput ModelRunnerConfig",
        "popgate.client": "AsyncClient Client ClientError",
        "popgate_onnx.compiler": "CompileOptions CompileReport compile_model",
        "popgate_python_interface": "Context Model route",
        "popgate_runtime.runner": "ModelRunner Result",
    }.items()
    for name in names.split()
}

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "CompileOptions",
    "CompileReport",
    "Context",
    "DeviceManager",
    "EngineError",
    "InvalidInput",
    "Model",
    "ModelRunner",
    "ModelRunnerConfig",
    "Result",
    "__version__",
    "compile_model",
    "route",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'popgate' has no attribute {name!r}")
    if place != "popgate.client":  # the client needs none of them
        check_packages()
    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return __all__
