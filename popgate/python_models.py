"""Classes for authors of Python models under the names that programs import. The plugin
`popgate_python_interface` contains them.

An interpreter that borrows the packages has no entry points.
"""

from __future__ import annotations

from popgate_python_interface import Context as Context
from popgate_python_interface import Model as Model
from popgate_python_interface import route as route
