"""Bodies that are files: one file, or a form with a part for each input.

It may import the same packages as `app.codec`. `app.codec.model` imports this package.
"""
