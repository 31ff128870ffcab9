"""Load, load with another configuration, unload; the server's mode is explicit."""

import argparse
import sys

import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    client = httpclient.InferenceServerClient(url=parser.parse_args().url)
    model = "simple"
    index = client.get_model_repository_index()
    if model not in [entry["name"] for entry in index]:
        sys.exit("FAILED: repository index")
    client.load_model(model)
    if not client.is_model_ready(model):
        sys.exit("FAILED: load model")
    # In a wrong form.
    try:
        client.load_model(
            model, config='"parameters": {"config": {{"max_batch_size": "16"}}}'
        )
    except InferenceServerException as error:
        if "failed to load" not in error.message():
            sys.exit(f"FAILED: {error.message()}")
    else:
        sys.exit("Expect error occurs for invald override config.")
    client.load_model(model, config='{"max_batch_size":"16"}')
    config = client.get_model_config(model)
    if config["max_batch_size"] != 16:
        sys.exit(f"Expect max_batch_size = 16, got: {config['max_batch_size']}")
    client.unload_model(model)
    if client.is_model_ready(model):
        sys.exit("FAILED: unload model")
    try:
        client.load_model("wrong_model_name")
    except InferenceServerException as error:
        if "failed to load" not in error.message():
            sys.exit(f"FAILED: {error.message()}")
    else:
        sys.exit("FAILED: a model that is not there")
    print("PASS: model control")


if __name__ == "__main__":
    main()
