# ruff: noqa: N816 - the names are the original's
"""Predicates for the use of the file's data: `PopefDataUsagePolicy`.

They accept with USE_USER_DATA and reject with USE_POPEF_DATA_IF_ANY.
"""

from model_runtime.predicates import Factories
from popgate_sessions import PopefDataUsagePolicy

_factories = Factories(
    PopefDataUsagePolicy.USE_USER_DATA, PopefDataUsagePolicy.USE_POPEF_DATA_IF_ANY
)
predProgramFlowLoad = _factories.predProgramFlowLoad
predProgramFlowMain = _factories.predProgramFlowMain
predProgramFlowSave = _factories.predProgramFlowSave
predProgramNotAssigned = _factories.predProgramNotAssigned
predProgramIndexes = _factories.predProgramIndexes
predAnchorsPolicies = _factories.predAnchorsPolicies
orBind = _factories.orBind
