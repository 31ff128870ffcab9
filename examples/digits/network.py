"""A small convolutional network in plain numpy: forward, backward, Adam.

It is here so that the example model can be trained again anywhere within a minute,
without a deep learning framework. Images are ``[n, channels, height, width]``, and
everything is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(eq=False, slots=True)
class Parameter:
    """A trained array, and the gradient that the last backward pass left for it."""

    name: str
    value: Array
    gradient: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = np.zeros_like(self.value)

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.value.shape})"


class Layer(Protocol):
    """One step of the network; `backward` belongs to the latest `forward`."""

    @property
    def parameters(self) -> Sequence[Parameter]: ...

    def forward(self, x: Array) -> Array: ...

    def backward(self, gradient: Array) -> Array: ...


class Convolution:
    """3x3 convolution with zero padding: ``[n, c, h, w]`` to ``[n, filters, h, w]``."""

    def __init__(
        self, name: str, channels: int, filters: int, rng: np.random.RandomState
    ) -> None:
        # Weights for a layer that ReLU follows: He et al., 2015.
        scale = np.sqrt(2 / (channels * 9))
        self.weight = Parameter(
            f"{name}.weight", rng.normal(0, scale, (filters, channels, 3, 3))
        )
        self.bias = Parameter(f"{name}.bias", np.zeros(filters))
        self.parameters = (self.weight, self.bias)
        self._neighbours: Array = np.empty(0)

    def forward(self, x: Array) -> Array:
        self._neighbours = _neighbourhoods(x)
        filters = len(self.weight.value)
        y = self._neighbours @ self.weight.value.reshape(filters, -1).T
        return _to_images(y + self.bias.value, x.shape)

    def backward(self, gradient: Array) -> Array:
        rows = gradient.transpose(0, 2, 3, 1).reshape(-1, gradient.shape[1])
        weight = self.weight.value
        self.weight.gradient = (rows.T @ self._neighbours).reshape(weight.shape)
        self.bias.gradient = rows.sum(axis=0)
        # The gradient for the input is the gradient convolved with the kernels
        # turned by 180 degrees, with the roles of channels and filters swapped.
        turned = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        back = _neighbourhoods(gradient) @ turned.reshape(len(turned), -1).T
        return _to_images(back, gradient.shape)


class MaxPool:
    """The largest of every 2x2 square: ``[n, c, h, w]`` to ``[n, c, h/2, w/2]``."""

    parameters = ()

    def __init__(self) -> None:
        self._winners: Array = np.empty(0)

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        squares = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y: Array = squares.max(axis=(3, 5))
        winners = (squares == y[:, :, :, None, :, None]).astype(np.float64)
        # Where pixels tie (behind ReLU mostly at 0) they share the gradient.
        self._winners = winners / winners.sum(axis=(3, 5), keepdims=True)
        return y

    def backward(self, gradient: Array) -> Array:
        n, c, h, w = gradient.shape
        shared = self._winners * gradient[:, :, :, None, :, None]
        return shared.reshape(n, c, h * 2, w * 2)


class Relu:
    parameters = ()

    def __init__(self) -> None:
        self._positive: NDArray[np.bool_] = np.empty(0, bool)

    def forward(self, x: Array) -> Array:
        self._positive = x > 0
        return np.where(self._positive, x, 0.0)

    def backward(self, gradient: Array) -> Array:
        return np.where(self._positive, gradient, 0.0)


class Dense:
    """A fully connected layer; images are flattened: ``[n, ...]`` to ``[n, units]``."""

    def __init__(
        self, name: str, inputs: int, units: int, rng: np.random.RandomState
    ) -> None:
        scale = np.sqrt(2 / inputs)
        self.weight = Parameter(f"{name}.weight", rng.normal(0, scale, (inputs, units)))
        self.bias = Parameter(f"{name}.bias", np.zeros(units))
        self.parameters = (self.weight, self.bias)
        self._input: Array = np.empty(0)

    def forward(self, x: Array) -> Array:
        self._input = x
        return x.reshape(len(x), -1) @ self.weight.value + self.bias.value

    def backward(self, gradient: Array) -> Array:
        flat = self._input.reshape(len(gradient), -1)
        self.weight.gradient = flat.T @ gradient
        self.bias.gradient = gradient.sum(axis=0)
        return (gradient @ self.weight.value.T).reshape(self._input.shape)


class Network:
    """Layers one after another, ending in one logit for each class."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.parameters = tuple(p for layer in layers for p in layer.parameters)

    def logits(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def loss(self, x: Array, labels: NDArray[np.int64]) -> float:
        """Mean cross-entropy of the batch; leaves every parameter its gradient."""
        rows = np.arange(len(labels))
        probabilities = softmax(self.logits(x))
        loss = -np.log(probabilities[rows, labels]).mean()
        gradient = probabilities
        gradient[rows, labels] -= 1
        gradient /= len(labels)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        return float(loss)


class Adam:
    """Kingma and Ba, 2015, with their constants, and decoupled weight decay."""

    def __init__(self, parameters: Sequence[Parameter], decay: float = 1e-3) -> None:
        self._parameters = parameters
        self._decay = decay
        self._mean = [np.zeros_like(p.value) for p in parameters]
        self._variance = [np.zeros_like(p.value) for p in parameters]
        self._steps = 0

    def step(self, learning_rate: float) -> None:
        self._steps += 1
        correction = np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for parameter, mean, variance in zip(
            self._parameters, self._mean, self._variance, strict=True
        ):
            mean += 0.1 * (parameter.gradient - mean)
            variance += 0.001 * (parameter.gradient**2 - variance)
            update = correction * mean / (np.sqrt(variance) + 1e-8)
            parameter.value -= learning_rate * (update + self._decay * parameter.value)


def softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def _neighbourhoods(x: Array) -> Array:
    """Lay out the 3x3 squares around every pixel as rows: ``[n * h * w, c * 9]``."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    squares = sliding_window_view(padded, (3, 3), axis=(2, 3))
    return squares.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)


def _to_images(rows: Array, shape: tuple[int, ...]) -> Array:
    """Turn rows of pixels ``[n * h * w, c]`` back into images ``[n, c, h, w]``."""
    n, _, h, w = shape
    return rows.reshape(n, h, w, -1).transpose(0, 3, 1, 2)
