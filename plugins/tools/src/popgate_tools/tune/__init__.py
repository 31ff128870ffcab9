"""`popgate tune`: the settings of a model that serve most within a latency."""

from popgate_tools.tune.command import tune

__all__ = ["tune"]
