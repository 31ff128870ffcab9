"""Train the digit classifier of this folder and write it as ONNX.

    pip install '.[examples]'                  # in the checkout
    python examples/digits/train.py            # writes the three files beside this one
    python examples/digits/train.py --check    # trains again and compares with them

The data are scikit-learn's bundled digits: 1,797 real scans of 8x8 pixels with values
from 0 to 16 ("Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak,
UCI Machine Learning Repository, 1998, CC BY 4.0). Of these, 360 are held out: they
are never trained on, and nothing was tuned on them. As many drawings of `drawings.py`
are trained on beside the scans, so that the model reads what is drawn with a mouse.

The result is the same on every machine: the random streams are frozen ones, training
is in float64, and the finished weights are rounded to a grid that is far coarser than
what processors disagree about in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
from drawings import drawings
from network import Adam, Array, Convolution, Dense, Layer, MaxPool, Network, Relu
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
HELD_OUT = 360
EPOCHS = 40
BATCH = 64
LEARNING_RATE = 2e-3
#: Drawings of which each epoch takes as many as there are scans.
DRAWINGS = 6000
WEIGHT_GRID = 2.0**-12
Labels = NDArray[np.int64]


def load_split() -> tuple[Array, Labels, Array, Labels]:
    """Return training images and labels, then the held-out ones."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype(np.float64)
    labels = digits.target.astype(np.int64)
    # RandomState's streams are frozen for ever; default_rng's may change with numpy.
    order = np.random.RandomState(0).permutation(len(images))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return images[train], labels[train], images[test], labels[test]


def build(rng: np.random.RandomState) -> Network:
    layers: list[Layer] = [
        Convolution("conv1", 1, 16, rng),
        Relu(),
        Convolution("conv2", 16, 32, rng),
        Relu(),
        MaxPool(),
        Dense("dense1", 32 * 4 * 4, 64, rng),
        Relu(),
        Dense("dense2", 64, 10, rng),
    ]
    return Network(layers)


def shifted(images: Array, rng: np.random.RandomState) -> Array:
    """Move every image by up to one pixel in each direction, at random."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    result = np.empty_like(images)
    for i, (row, column) in enumerate(rng.randint(0, 3, (len(images), 2))):
        result[i] = padded[i, :, row : row + 8, column : column + 8]
    return result


def train(images: Array, labels: Labels) -> Network:
    rng = np.random.RandomState(1)
    network = build(rng)
    optimizer = Adam(network.parameters)
    scans, batches = len(images), 2 * len(images) // BATCH
    drawn, digits = drawings(DRAWINGS, rng)
    images, labels = np.concatenate([images, drawn]), np.concatenate([labels, digits])
    for epoch in track(range(EPOCHS), "training", console=Console(stderr=True)):
        chosen = scans + rng.permutation(DRAWINGS)[:scans]
        order = rng.permutation(np.concatenate([np.arange(scans), chosen]))
        for batch in range(batches):
            rows = order[batch * BATCH : (batch + 1) * BATCH]
            progress = (epoch * batches + batch) / (EPOCHS * batches)
            network.loss(shifted(images[rows] / 16, rng), labels[rows])
            optimizer.step(LEARNING_RATE * (1 + np.cos(np.pi * progress)) / 2)
    for parameter in network.parameters:
        parameter.value = np.round(parameter.value / WEIGHT_GRID) * WEIGHT_GRID
    return network


def to_onnx(network: Network) -> onnx.ModelProto:
    """Write the network as ONNX: any number of images in, probabilities and digit out.

    Input ``image``: float32 ``[n, 1, 8, 8]``, values 0 to 16 as scanned. Outputs
    ``probabilities``: float32 ``[n, 10]``, and ``digit``: int64 ``[n]``.
    """
    node, value_info = helper.make_node, helper.make_tensor_value_info
    nodes = [node("Div", ["image", "white"], ["scaled"])]
    for layer in network.layers:
        nodes += onnx_nodes(layer, nodes[-1].output[0], f"value{len(nodes)}")
    nodes += [
        node("Softmax", [nodes[-1].output[0]], ["probabilities"], axis=1),
        node("ArgMax", ["probabilities"], ["digit"], axis=1, keepdims=0),
    ]
    initializers = [numpy_helper.from_array(np.float32(16), "white")]
    initializers += [
        numpy_helper.from_array(parameter.value.astype(np.float32), parameter.name)
        for parameter in network.parameters
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [
            value_info("probabilities", TensorProto.FLOAT, ["n", 10]),
            value_info("digit", TensorProto.INT64, ["n"]),
        ],
        initializers,
    )
    # The oldest versions that have these operators: every ONNX Runtime in use reads it.
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    model.producer_name = "popgate examples/digits/train.py"
    model.doc_string = "Handwritten digits, 8x8 pixels with values from 0 to 16."
    return model


def onnx_nodes(layer: Layer, value: str, result: str) -> list[onnx.NodeProto]:
    """Say in ONNX nodes what the layer does; the last node makes ``result``."""
    weights = [parameter.name for parameter in layer.parameters]
    node = helper.make_node
    match layer:
        case Convolution():
            inputs = [value, *weights]
            return [node("Conv", inputs, [result], pads=[1, 1, 1, 1])]
        case Relu():
            return [node("Relu", [value], [result])]
        case MaxPool():
            squares = {"kernel_shape": [2, 2], "strides": [2, 2]}
            return [node("MaxPool", [value], [result], **squares)]
        case Dense():
            flat = f"{result}.input"
            return [
                node("Flatten", [value], [flat]),
                node("Gemm", [flat, *weights], [result]),
            ]
        case _:
            raise TypeError(f"no ONNX form for layer {layer!r}")


def count_correct(model: bytes, images: NDArray[np.float32], labels: Labels) -> int:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (digits,) = session.run(["digit"], {"image": images})
    return int((digits == labels).sum())


def write(folder: Path) -> str:
    """Train, write the three files into the folder, and return the accuracy in words.

    The same words go into the model's metadata, under ``held_out_accuracy``, and the
    first held-out image, for PopGate's pages, under ``popgate.example``.
    """
    train_images, train_labels, test_images, test_labels = load_split()
    images = test_images.astype(np.float32)
    # The matrices are too small for more threads to be of use.
    with threadpool_limits(1):
        model = to_onnx(train(train_images, train_labels))
    correct = count_correct(model.SerializeToString(), images, test_labels)
    accuracy = f"{correct}/{len(images)}"
    example = {"image": images[:1].astype(int).tolist()}
    properties = {
        "held_out_accuracy": accuracy,
        "popgate.example": json.dumps(example, separators=(",", ":")),
    }
    helper.set_model_props(model, properties)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "digits.onnx")
    np.save(folder / "test_images.npy", images)
    np.save(folder / "test_labels.npy", test_labels)
    return f"{accuracy} held-out images recognised ({correct / len(images):.2%})"


def check(console: Console) -> int:
    with TemporaryDirectory() as name:
        console.print(write(Path(name)))
        different = [
            path.name
            for path in sorted(Path(name).iterdir())
            if path.read_bytes() != (HERE / path.name).read_bytes()
        ]
    if different:
        console.print(f"[red]different from the files here: {', '.join(different)}")
        return 1
    console.print("[green]the same files, byte for byte")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the digit classifier.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit 1 unless training gives the very files shipped here",
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    arguments = parser.parse_args()
    console = Console()
    if not arguments.check:
        console.print(write(arguments.out))
        return 0
    return check(console)


if __name__ == "__main__":
    sys.exit(main())
