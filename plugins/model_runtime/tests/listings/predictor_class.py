#!/usr/bin/env python3
"""A predictor with pre- and post-processing, of the kind that model hubs show."""
import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping

import model_runtime
import numpy as np
import popef

logger = logging.getLogger("predictor")


@dataclass
class Prediction:
    label: str
    score: float


class Predictor:
    labels = ("north", "east", "south", "west")

    def __init__(self, *paths: Path, **options: Any) -> None:
        config = model_runtime.ModelRunnerConfig()
        for name, value in options.items():
            assert hasattr(config, name), name
            setattr(config, name, value)
        files = model_runtime.PopefPaths([str(path) for path in paths])
        self.runner = model_runtime.ModelRunner(files, config=config)
        self.inputs = {i.name: i for i in self.runner.getExecuteInputs()}
        self.batch = next(iter(self.inputs.values())).shape[0]
        logger.info("inputs %s outputs %s config %s", self.runner.getExecuteInputs(),
                    self.runner.getExecuteOutputs(), self.runner.config())
        self.view = model_runtime.InputMemoryView()

    def preprocess(self, texts: Iterable[str]) -> np.ndarray:
        rows = [[t.count(c) for c in "nesw"] for t in texts]
        missing = -len(rows) % self.batch
        return np.array(rows + [[0] * 4] * missing)

    def forward(self, features: np.ndarray) -> Mapping[str, np.ndarray]:
        for name, desc in self.inputs.items():
            dtype = popef.popefTypeToNumpyDType(desc.data_type)
            self.view[name] = features.astype(dtype)  # nobody else holds it
        future = self.runner.executeAsync(self.view)
        future.wait()
        return {
            d.name: np.frombuffer(future[d.name], dtype=d.numpy_data_type()).reshape(
                [-1] + d.shape[1:])
            for d in self.runner.getExecuteOutputs()
        }

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Iterator[Prediction]:
        (logits,) = outputs.values()
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        for row in scores:
            yield Prediction(self.labels[row.argmax()], float(row.max()))

    def __call__(self, texts):
        predictions = list(self.postprocess(self.forward(self.preprocess(texts))))
        return predictions[:len(texts)]


parser = argparse.ArgumentParser()
parser.add_argument("-p", "--popef", type=Path, nargs="+")
predict = Predictor(*parser.parse_args().popef, thread_safe=True, max_look_ahead="0")
texts = ["nnnnn", "www", "eeeee", "ss", "nnnnnnn e"]
for count in (1, 3, 5):
    found = predict(texts[:count])
    print(found)
    assert [p.label[0] for p in found] == [t[0] for t in texts[:count]]
    assert all(0.25 < p.score <= 1 for p in found)
print("Success: exiting")
