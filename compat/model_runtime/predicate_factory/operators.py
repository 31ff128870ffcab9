"""Where older releases had `andBind` and `orBind`."""

from model_runtime.predicate_factory.anchor_callbacks import andBind, orBind

__all__ = ["andBind", "orBind"]
