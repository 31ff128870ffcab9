"""Text in, score out: a tokenizer with a vocabulary beside it, and a weight a word.

The route /v1/reviews takes reviews as JSON, and answers with the best one.
"""

import json
import re

import numpy as np
from pydantic import BaseModel, Field

from popgate import Model, route

WORD = re.compile(r"[a-z']+")


class Reviews(BaseModel):
    reviews: list[str] = Field(min_length=1, max_length=100)


class Best(BaseModel):
    review: str
    score: float


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

    @route.post("/v1/reviews", summary="Find the best review")
    def best(self, body: Reviews) -> Best:
        scores = self([each.encode() for each in body.reviews])["score"]
        at = int(np.argmax(scores))
        return Best(review=body.reviews[at], score=scores[at])
