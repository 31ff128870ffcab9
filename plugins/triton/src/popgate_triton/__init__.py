"""Support for files and tools of the Triton Inference Server.

`configuration` reads ``config.pbtxt``: `reading` with the messages of `schema`,
`translation` with `tensors` and `sequences`.
"""
