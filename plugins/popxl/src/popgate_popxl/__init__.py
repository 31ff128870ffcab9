"""`popgate compile program.py[:name]`: programs of popxl as executables.

A plugin of PopGate (docs/how-to/write-a-plugin.md), beside `popir`, `popxl` and
`popart`. Runs in the process of the command. May import of PopGate: `app`, `engine`.
"""
