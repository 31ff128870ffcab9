"""Bodies that are files: one file, or a form with a part for each input.

May import what the modules of `app.codec` may; `app.codec.model` imports this package.
"""
