"""Support for files and tools of the Triton Inference Server.

`configuration` reads ``config.pbtxt``: `reading` with the messages of `schema`,
`translation` with `tensors` and `sequences`. `profile` has the settings and statuses
that its clients expect, with `models`. `routes` are the trace and log extensions;
`traces` writes the trace file.
"""
