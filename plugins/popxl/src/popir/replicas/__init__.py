"""Several replicas of one program in one process.

All go through the program together; what each computes is an ONNX graph of its own
values, what they exchange is NumPy.
"""

from popir.replicas.lockstep import LockstepSession

__all__ = ("LockstepSession",)
