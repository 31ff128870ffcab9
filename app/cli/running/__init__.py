"""Commands that ask a running gateway, or tell it something."""

from app.cli.running.drain import drain
from app.cli.running.models import load, models, unload
from app.cli.running.top import top

__all__ = ["drain", "load", "models", "top", "unload"]
