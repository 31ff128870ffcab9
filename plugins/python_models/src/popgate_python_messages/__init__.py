"""Messages of a Python model's calls, between its device process and the owner.

Both processes import this package: `call_messages` are the messages on the socket of a
model, and `call_log` is the log of calls that bypass the owner. It may import
`popef_io` and the modules of `engine`.
"""
