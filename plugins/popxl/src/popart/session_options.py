"""The options of a program."""

from __future__ import annotations

import os
from typing import Any

from popart.enums import VirtualGraphMode


class SessionOptions:
    """Options that programs read and set; unknown ones are kept too."""

    def __init__(self) -> None:
        self.virtualGraphMode: Any = VirtualGraphMode.Manual
        self.useHostCopyOps = True
        self.aliasZeroCopy = True
        self.enableExplicitMainLoops = True
        self.explicitRecomputation = True
        self.enableInplaceAmbiguityChecking = True
        self.decomposeGradSum = True
        self.enableVariablesCaching = False
        self.enableReplicatedGraphs = False
        self.replicatedGraphCount = 1
        self.enableDistributedReplicatedGraphs = False
        self.globalReplicaOffset = 0
        self.globalReplicationFactor = 1
        self.engineOptions: dict[str, str] = {}
        self.dotChecks: set[str] = set()
        self.logDir = "."
        self.partialsTypeMatMuls = ""
        self.convolutionOptions: dict[str, str] = {}
        self.throwIfLog2ScaleTensorNotInRange = False
        self.constantWeights = True
        folder = os.environ.get("POPXL_CACHE_DIR") or os.environ.get("POPART_CACHE_DIR")
        self.enableEngineCaching = folder is not None
        self.cachePath = folder or ""
