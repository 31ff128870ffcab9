"""Model runners under the names that programs import. The plugin `popgate_runtime`
contains them.

Type checkers would not know the names of an entry point.
"""

from __future__ import annotations

from popgate_runtime.runner import ModelRunner as ModelRunner
from popgate_runtime.runner import Result as Result
