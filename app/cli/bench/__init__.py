"""`popgate bench`: a model run by callbacks, or through queues."""

from app.cli.bench.command import bench

__all__ = ["bench"]
