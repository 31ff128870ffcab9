"""Commands that query or manage a running gateway."""

from popgate_tools.running.drain import drain
from popgate_tools.running.models import load, models, unload
from popgate_tools.running.top import top

__all__ = ["drain", "load", "models", "top", "unload"]
