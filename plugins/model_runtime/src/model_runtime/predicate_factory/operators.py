"""The module of `andBind` and `orBind` in older releases."""

from model_runtime.predicate_factory.anchor_callbacks import andBind, orBind

__all__ = ["andBind", "orBind"]
