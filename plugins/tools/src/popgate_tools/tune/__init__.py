"""`popgate tune`: find the settings that serve most requests within a latency."""

from popgate_tools.tune.command import tune

__all__ = ["tune"]
