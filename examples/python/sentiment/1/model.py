"""Text in, score out: a tokenizer with a vocabulary beside it, and a weight a word."""

import json
import re

import numpy as np

from popgate import Model

WORD = re.compile(r"[a-z']+")


class Sentiment(Model):
    inputs = {"text": "BYTES[-1]"}
    outputs = {"score": "FP32[-1]", "tokens": "INT32[-1]"}
    batching = True

    def load(self, context):
        words = json.loads((context.folder / "vocabulary.json").read_text())
        self.number = {word: n for n, word in enumerate(words, 1)}
        self.weights = np.array([0.0, *words.values()], np.float32)  # 0: unknown

    def tokenize(self, text):
        words = WORD.findall(text.decode("utf-8", "replace").lower())
        return [self.number.get(word, 0) for word in words]

    def __call__(self, text):
        rows = [self.tokenize(each) for each in text]
        return {
            "score": [np.tanh(self.weights[row].sum()) for row in rows],
            "tokens": [len(row) for row in rows],
        }
