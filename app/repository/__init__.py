"""One model's life: scan, load, swap, warm up, keep in memory, unload.

Runs in the gateway process: its event loop and background threads. May import
`serving`, `codec`, `config`, `observe`, the settings and the ground.
"""
