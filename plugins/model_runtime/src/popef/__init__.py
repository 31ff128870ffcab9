# ruff: noqa: N802 - the names are the original's
"""PopEF containers under the names of Graphcore's `popef` module.

A thin front end of `popef_io`. Spelling and conventions are the original's, the bytes
of the files are PopGate's (docs/reference/popef-format.md).
docs/how-to/migrate-from-model-runtime.md says for each name whether it works and how it
differs.

Metadata, anchors and similar objects are values: a getter has the name of its field, a
setter the name with `set` before it. All errors are RuntimeErrors. A value of a wrong
type also raises a TypeError, and an error of the operating system an OSError.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from popef.data_info import FeedDataInfo, TensorDataInfo
from popef.metadata import Metadata
from popef.model import Model, ModelBuilder
from popef.reading import (
    ExecutableReader,
    FeedReader,
    OpaqueReader,
    Reader,
    TensorReader,
)
from popef.taking import expected
from popef.values import Anchor, Option, ProgramFlow, TensorInfo
from popef.writing import BlobWriter, FeedsWriter, FileWriter, Writer
from popef_io import BlobType, DataType, TensorType


def popefTypeToNumpyDType(data_type: DataType) -> np.dtype[Any]:
    """Return the numpy type that carries elements of `data_type`."""
    return expected(data_type, DataType).numpy_dtype


#: The version of the distribution, PopGate.
__version__ = version("popgate")

__all__ = [
    "Anchor",
    "BlobType",
    "BlobWriter",
    "DataType",
    "ExecutableReader",
    "FeedDataInfo",
    "FeedReader",
    "FeedsWriter",
    "FileWriter",
    "Metadata",
    "Model",
    "ModelBuilder",
    "OpaqueReader",
    "Option",
    "ProgramFlow",
    "Reader",
    "TensorDataInfo",
    "TensorInfo",
    "TensorReader",
    "TensorType",
    "Writer",
    "popefTypeToNumpyDType",
]
