"""`popgate perf`: how fast a server answers, under which load."""

from popgate_tools.perf.command import perf

__all__ = ["perf"]
