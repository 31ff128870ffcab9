"""generate and generate_stream, as any HTTP client asks them."""

import argparse
import json
import sys
import urllib.error
import urllib.request


def post(url, what, body):
    """Status, content type and text of an answer."""
    request = urllib.request.Request(
        f"http://{url}/v2/models/mock_llm/{what}", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    text = "hello world"
    status, kind, answer = post(url, "generate", {"PROMPT": text, "STREAM": False})
    if (status, kind, json.loads(answer)["TEXT"]) != (200, "application/json", text):
        sys.exit(f"FAILED: generate: {answer}")
    body = {"PROMPT": [text], "STREAM": True, "REPETITION": 3, "FAIL_LAST": True}
    status, kind, answer = post(url, "generate_stream", body)
    if (status, kind) != (200, "text/event-stream; charset=utf-8"):
        sys.exit(f"FAILED: generate_stream: {status} {kind}")
    events = [json.loads(e.removeprefix("data: ")) for e in answer.split("\n\n")[:-1]]
    if [event.get("TEXT") for event in events] != [text] * 3 + [None]:
        sys.exit(f"FAILED: events: {events}")
    if events[-1]["error"] != "An Error Occurred":
        sys.exit(f"FAILED: the last event: {events[-1]}")
    status, kind, answer = post(url, "generate", {"PROMPT": text})
    if status != 400 or "expected 2 inputs but got 1" not in answer:
        sys.exit(f"FAILED: a missing input: {answer}")
    print("PASS: generate")


if __name__ == "__main__":
    main()
