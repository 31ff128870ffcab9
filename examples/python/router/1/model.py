"""Calls one of two models: texts go to `sentiment`, image files to `read_digit`."""

import numpy as np

from popgate import Model

IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM")


class Router(Model):
    inputs = {"data": "BYTES[1]"}
    outputs = {"model": "BYTES[1]", "answer": "FP32[1]"}

    def load(self, context):
        self.models = context.models

    def __call__(self, data):
        if data[0].startswith(IMAGES):
            answer = self.models["read_digit"](file=data)["label"]
            return {"model": ["read_digit"], "answer": answer.astype(np.float32)}
        answer = self.models["sentiment"](text=data)["score"]
        return {"model": ["sentiment"], "answer": answer}
