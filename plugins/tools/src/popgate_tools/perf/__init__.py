"""`popgate perf`: measures how fast a server answers under a load."""

from popgate_tools.perf.command import perf

__all__ = ["perf"]
