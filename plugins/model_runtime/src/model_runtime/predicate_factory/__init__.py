"""Predefined predicates (Model Runtime: namespace `predicate_factory`).

`anchor_callbacks` and `popef_data_usage` have the predicates for the two kinds of
policies. As in older releases, the predicates of `anchor_callbacks` are here too.
"""

from model_runtime.predicate_factory import (
    anchor_callbacks,
    operators,
    popef_data_usage,
)
from model_runtime.predicate_factory.anchor_callbacks import (
    predAnchorsPolicies,
    predNonScalarType,
    predProgramFlowLoad,
    predProgramFlowMain,
    predProgramFlowSave,
    predProgramIndexes,
    predProgramNotAssigned,
)
from model_runtime.predicates import AnchorWithPolicy, ProgramsWithPolicy

__all__ = [
    "AnchorWithPolicy",
    "ProgramsWithPolicy",
    "anchor_callbacks",
    "operators",
    "popef_data_usage",
    "predAnchorsPolicies",
    "predNonScalarType",
    "predProgramFlowLoad",
    "predProgramFlowMain",
    "predProgramFlowSave",
    "predProgramIndexes",
    "predProgramNotAssigned",
]
