"""`popgate bench`: a model run by callbacks, or through queues."""

from popgate_runtime.bench.command import bench

__all__ = ["bench"]
