"""Recognise the held-out digits with the engine in this process: no HTTP.

popgate compile examples/digits/digits.onnx -o models/digits.popef
python examples/embed.py models/digits.popef
"""

import sys
from pathlib import Path

import numpy as np

from engine import ModelRunner

folder = Path(__file__).parent / "digits"
images = np.load(folder / "test_images.npy")
labels = np.load(folder / "test_labels.npy")

with ModelRunner(sys.argv[1]) as runner:
    result = runner.execute({"image": images})
correct = int((result["digit"] == labels).sum())
print(f"{correct}/{len(labels)} = {correct / len(labels):.2%}")
