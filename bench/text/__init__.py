"""The benchmark of texts of many lengths (`python -m bench.text`)."""
