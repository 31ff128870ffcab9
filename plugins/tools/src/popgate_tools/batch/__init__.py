"""`popgate batch`: the rows of a file through a model of a running gateway."""

from popgate_tools.batch.command import batch

__all__ = ["batch"]
