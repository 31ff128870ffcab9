"""`popgate tune`: the settings of a model that serve most within a latency."""

from app.cli.tune.command import tune

__all__ = ["tune"]
