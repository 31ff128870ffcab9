"""Predefined predicates (Model Runtime: namespace `predicate_factory`).

`anchor_callbacks` and `popef_data_usage` have them for the two kinds of policies; those
of the former are here too, as in older releases.
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
