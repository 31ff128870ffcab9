"""The compiler of ONNX models: `popgate compile`, and .onnx files that are served.

A plugin of PopGate (docs/how-to/write-a-plugin.md). Runs in the process of a command,
in the server, and in the process that compiles. May import of PopGate: `app`, `engine`,
`popef_io`.
"""
