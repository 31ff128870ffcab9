"""Streaming: a text, one word after the other, each as soon as the client wants it."""


class Words:
    inputs = {"text": "BYTES[1]"}
    outputs = {"word": "BYTES[1]", "left": "INT32[1]"}

    def load(self, context):
        self.context = context

    def __call__(self, text):
        words = text[0].split()
        for number, word in enumerate(words, 1):
            if self.context.cancelled:
                return
            yield {"word": [word], "left": [len(words) - number]}
