"""`popgate batch`: run a model of a server on the rows of a file."""

from popgate_tools.batch.command import batch

__all__ = ["batch"]
