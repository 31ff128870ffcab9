"""The shipped classifier is what its documentation says, and what the trainer makes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from network import Array, Convolution, Dense, MaxPool, Network, Relu, softmax

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        DIGITS / "digits.onnx", providers=["CPUExecutionProvider"]
    )


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    pytest.importorskip("sklearn", reason="needs the `examples` extra")
    import train

    return train


@pytest.fixture(scope="module")
def images() -> Array:
    found: Array = np.load(DIGITS / "test_images.npy")
    return found


@pytest.fixture(scope="module")
def labels() -> Array:
    found: Array = np.load(DIGITS / "test_labels.npy")
    return found


def test_held_out_split_is_images_and_labels(images: Array, labels: Array) -> None:
    assert images.shape == (360, 1, 8, 8)
    assert images.dtype == np.float32
    assert labels.shape == (360,)
    assert labels.dtype == np.int64
    assert (images.min(), images.max()) == (0, 16)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_accuracy_is_the_stated_one(
    session: onnxruntime.InferenceSession, images: Array, labels: Array
) -> None:
    (digits,) = session.run(["digit"], {"image": images})
    correct = int((digits == labels).sum())
    stated = session.get_modelmeta().custom_metadata_map["held_out_accuracy"]
    assert stated == f"{correct}/{len(labels)}" == "360/360"


def test_interface_is_the_documented_one(session: onnxruntime.InferenceSession) -> None:
    inputs = [(i.name, i.shape, i.type) for i in session.get_inputs()]
    outputs = [(o.name, o.shape, o.type) for o in session.get_outputs()]
    assert inputs == [("image", ["n", 1, 8, 8], "tensor(float)")]
    assert outputs == [
        ("probabilities", ["n", 10], "tensor(float)"),
        ("digit", ["n"], "tensor(int64)"),
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 360])
def test_any_number_of_images(
    session: onnxruntime.InferenceSession, images: Array, count: int
) -> None:
    probabilities, digits = session.run(None, {"image": images[:count]})
    assert probabilities.shape == (count, 10)
    assert digits.shape == (count,)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_model_is_small_enough_for_the_repository() -> None:
    assert (DIGITS / "digits.onnx").stat().st_size < 1_000_000


def test_network_with_the_shipped_weights_agrees_with_the_onnx(
    session: onnxruntime.InferenceSession, images: Array
) -> None:
    network = with_shipped_weights()
    expected = softmax(network.logits(images.astype(np.float64) / 16))
    (probabilities,) = session.run(["probabilities"], {"image": images})
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_weights_lie_on_the_grid_that_makes_training_reproducible() -> None:
    model = onnx.load(DIGITS / "digits.onnx")
    for item in model.graph.initializer:
        steps = onnx.numpy_helper.to_array(item).astype(np.float64) * 2**12
        assert (steps == np.round(steps)).all()


def test_gradients_are_the_slopes_of_the_loss() -> None:
    rng = np.random.RandomState(3)
    network = small_network(2, 3, 5, size=4)
    x: Array = rng.uniform(size=(6, 1, 4, 4))
    labels = rng.randint(0, 10, 6)
    network.loss(x, labels)
    gradients = [parameter.gradient.copy() for parameter in network.parameters]
    for parameter, gradient in zip(network.parameters, gradients, strict=True):
        for index in np.ndindex(parameter.value.shape):
            kept = parameter.value[index]
            parameter.value[index] = kept + 1e-6
            above = network.loss(x, labels)
            parameter.value[index] = kept - 1e-6
            below = network.loss(x, labels)
            parameter.value[index] = kept
            slope = (above - below) / 2e-6
            assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_a_first_epoch_on_few_drawings_is_the_same_everywhere(
    trainer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 40 of them, on all drawings, take a minute: `train.py --check`."""
    monkeypatch.setattr(trainer, "EPOCHS", 1)
    monkeypatch.setattr(trainer, "DRAWINGS", 1440)
    assert trainer.write(tmp_path) == "271/360 held-out images recognised (75.28%)"
    for name in ("test_images.npy", "test_labels.npy"):
        assert (tmp_path / name).read_bytes() == (DIGITS / name).read_bytes(), name
    digest = hashlib.blake2b(digest_size=16)
    for item in onnx.load(tmp_path / "digits.onnx").graph.initializer:
        digest.update(onnx.numpy_helper.to_array(item).tobytes())
    assert digest.hexdigest() == "1e18e228c31d3d4be0a0882fdd122882"


def test_the_shipped_weights_are_written_as_the_shipped_file(
    trainer: ModuleType,
) -> None:
    network = with_shipped_weights()
    model = trainer.to_onnx(network)
    shipped = onnx.load(DIGITS / "digits.onnx")
    properties = {item.key: item.value for item in shipped.metadata_props}
    assert properties["held_out_accuracy"] == "360/360"
    onnx.helper.set_model_props(model, properties)
    assert model.SerializeToString() == (DIGITS / "digits.onnx").read_bytes()


def with_shipped_weights() -> Network:
    network = small_network(16, 32, 64, size=8)
    model = onnx.load(DIGITS / "digits.onnx")
    weights = {
        item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer
    }
    for parameter in network.parameters:
        assert parameter.value.shape == weights[parameter.name].shape
        parameter.value = weights[parameter.name].astype(np.float64)
    return network


def small_network(first: int, second: int, hidden: int, size: int) -> Network:
    """A network shaped like the shipped one, for images of `size` by `size`."""
    rng = np.random.RandomState(2)
    return Network(
        [
            Convolution("conv1", 1, first, rng),
            Relu(),
            Convolution("conv2", first, second, rng),
            Relu(),
            MaxPool(),
            Dense("dense1", second * (size // 2) ** 2, hidden, rng),
            Relu(),
            Dense("dense2", hidden, 10, rng),
        ]
    )
