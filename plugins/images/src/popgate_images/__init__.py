"""Pictures as inputs: a section ``[image]`` lets a model of numbers take JPEG and PNG.

`config` is the section, `plan` how a picture becomes numbers, `picture` does it,
`decoder_process` in a process of its own that `decoders` starts and talks to, and
`scheduler` stands before the model. Pillow is imported in the decoding process only.
"""
