"""Read Python models for their owner: the file, its inputs and outputs, its adapter.

Part of a plugin of PopGate. Runs in the owner of the devices, which imports no code of
a model. It may import `popef_io` and the modules of `engine`.
"""

from popgate_python_files.python_file import read_python_model

__all__ = ["read_python_model"]
