"""What clients and operators of the Triton Inference Server bring along.

`configuration` reads ``config.pbtxt``: `reading` with the messages of `schema`,
`translation` with `tensors` and `sequences`.
"""
