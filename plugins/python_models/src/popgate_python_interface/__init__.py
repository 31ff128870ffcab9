"""Classes for authors of Python models, and what a module declares with them.

Part of a plugin of PopGate. `interface` finds the inputs and outputs of a model in its
module. Both the processes of Python models and the gateway import this package, and an
interpreter of the author borrows it. It may import `popef_io` and the modules of
`engine`.
"""

from popgate_python_interface.interface import PythonInterface, PythonTensor, find_model
from popgate_python_interface.model import (
    GRAPH,
    CalledModels,
    Context,
    Model,
    PresentRun,
)
from popgate_python_interface.own_metrics import MetricSeries, OwnMetrics
from popgate_python_interface.route import route
from popgate_python_interface.routes import RouteApp, failed_answer, find_routes

__all__ = [
    "GRAPH",
    "CalledModels",
    "Context",
    "MetricSeries",
    "Model",
    "OwnMetrics",
    "PresentRun",
    "PythonInterface",
    "PythonTensor",
    "RouteApp",
    "failed_answer",
    "find_model",
    "find_routes",
    "route",
]
