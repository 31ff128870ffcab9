"""Health, metadata and configuration; also of a model that is not there."""

import argparse
import sys

import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    client = httpclient.InferenceServerClient(url=parser.parse_args().url)
    query = {"test_1": 1, "test_2": 2}
    if not client.is_server_live(query_params=query):
        sys.exit("FAILED: is_server_live")
    if not client.is_server_ready():
        sys.exit("FAILED: is_server_ready")
    if not client.is_model_ready("simple"):
        sys.exit("FAILED: is_model_ready")
    metadata = client.get_server_metadata()
    if metadata["name"] != "triton":
        sys.exit("FAILED: get_server_metadata")
    if client.get_model_metadata("simple", query_params=query)["name"] != "simple":
        sys.exit("FAILED: get_model_metadata")
    if client.get_model_config("simple")["name"] != "simple":
        sys.exit("FAILED: get_model_config")
    for call in (client.get_model_metadata, client.get_model_config):
        try:
            call("wrong_model_name")
        except InferenceServerException as error:
            if "Request for unknown model" not in error.message():
                sys.exit(f"FAILED: {error.message()}")
        else:
            sys.exit("FAILED: a model that is not there")
    print("PASS: health metadata")


if __name__ == "__main__":
    main()
