"""A Python model in its device process, and the calls of the model to other models.

A plugin of PopGate (docs/how-to/write-a-plugin.md). A device process imports `kind`,
which an entry point names. `session` runs the author's code, and `calls` is the
process's end of calls to other models. It may run in an interpreter that does not have
PopGate installed and borrows this package (`popgate_python_files.other_interpreter`).
It may import `popef_io` and the modules of `engine`.
"""
