"""`popgate perf`: how fast a server answers, under which load."""

from app.cli.perf.command import perf

__all__ = ["perf"]
