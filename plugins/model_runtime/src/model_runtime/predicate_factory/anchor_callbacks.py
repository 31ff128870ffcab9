# ruff: noqa: N816 - the names are the original's
"""Predicates for the callbacks of anchors: `AnchorCallbackPolicy`.

They accept with BIND_USER_CB and reject with BIND_EMPTY_CB.
"""

from model_runtime.predicates import Factories
from popgate_sessions import AnchorCallbackPolicy

_factories = Factories(
    AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB
)
predProgramFlowLoad = _factories.predProgramFlowLoad
predProgramFlowMain = _factories.predProgramFlowMain
predProgramFlowSave = _factories.predProgramFlowSave
predProgramNotAssigned = _factories.predProgramNotAssigned
predNonScalarType = _factories.predNonScalarType
predProgramIndexes = _factories.predProgramIndexes
predAnchorsPolicies = _factories.predAnchorsPolicies
andBind = _factories.andBind
orBind = _factories.orBind
