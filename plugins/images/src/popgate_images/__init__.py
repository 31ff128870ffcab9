"""Pictures as inputs: with a section ``[image]`` a model of numbers takes JPEG and PNG.

`config` is the section. `planning` makes a plan from it, by which `picture` turns a
picture into numbers. `decoder_process` is the process that does this, `decoders` starts
and calls it, and `scheduler` passes the numbers to the model. Pillow is imported in the
decoding process only.
"""
