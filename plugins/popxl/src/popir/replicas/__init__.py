"""Several replicas of one program in one process.

All run the program together. Each computes an ONNX graph of its own values; exchanges
are NumPy.
"""

from popir.replicas.lockstep import LockstepSession

__all__ = ("LockstepSession",)
