"""Lowering from graphs to an executable: views and in-place writes become values, pure
operators between effects one ONNX graph. plugins/popxl/README.md describes it.
"""
