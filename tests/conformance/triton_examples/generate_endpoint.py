"""generate and generate_stream, as any HTTP client asks them."""

import argparse
import json
import sys
import urllib.error
import urllib.request
from typing import Any

TEXT = "hello world"
EVENTS = "text/event-stream; charset=utf-8"
NOT_ONE = "generate expects model to produce exactly 1 response"
# What is wrong with a request, and what of it has to be said.
WRONG = [
    ({}, "inputs between 2 and 3 but got 0"),
    ({"abc": 123}, "inputs between 2 and 3 but got 0"),
    ({"PROMPT": TEXT}, "inputs between 2 and 3 but got 1"),
    ({"STREAM": False, "other": "param"}, "inputs between 2 and 3 but got 1"),
    ({"PROMPT": 123, "STREAM": False}, "attempt to access JSON non-string as string"),
    (
        {"PROMPT": TEXT, "STREAM": "false"},
        "attempt to access JSON non-boolean as boolean",
    ),
    (
        '{"PROMPT": "a", "STREAM": false, "PROMPT": "b"}',
        "input 'PROMPT' already exists in request",
    ),
    (
        '{"PROMPT": "a", "STREAM": false, "STREAM": false}',
        "input 'STREAM' already exists in request",
    ),
    (
        {"PROMPT": TEXT, "STREAM": True, "PARAMS": {"PARAM_0": 0, "PARAM_1": True}},
        "parameter 'PARAMS' has invalid type",
    ),
    (
        {"PROMPT": {"outer": TEXT}, "STREAM": True},
        "attempt to access JSON non-string as string",
    ),
    (
        {"PROMPT": TEXT, "STREAM": True, "parameters": 1},
        "Expected JSON object for keyword: 'parameters'",
    ),
    (
        {"PROMPT": TEXT, "STREAM": True, "parameters": {"nested": {"twice": 1}}},
        "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
    ),
]


def post(url: str, what: str, body: Any) -> Any:
    """Status, content type and text of an answer."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(
        f"http://{url}/v2/models/mock_llm/{what}",
        text.encode(),
        {"Accept": "text/event-stream"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        sys.exit(f"FAILED: {what}: {found!r} instead of {wanted!r}")


def one_response(url: str) -> None:
    status, kind, answer = post(url, "generate", {"PROMPT": TEXT, "STREAM": False})
    expect((status, kind), (200, "application/json"), answer)
    expect(json.loads(answer)["TEXT"], TEXT, "generate")
    expect("id" in json.loads(answer), False, "an id that nobody gave")
    named = {"id": "request-1", "PROMPT": TEXT, "STREAM": False, "more": "parameters"}
    expect(json.loads(post(url, "generate", named)[2])["id"], "request-1", "the id")


def responses(url: str) -> None:
    """So many responses of a model that decides that itself."""
    for parameters, events in (
        ({}, [TEXT]),
        ({"REPETITION": 0, "DELAY": 0}, []),
        ({"REPETITION": 3}, [TEXT] * 3),
        ({"parameters": {"REPETITION": 2, "DELAY": 0.01}}, [TEXT] * 2),
        ({"OUTPUT_0_DIM": True}, [[]]),
        ({"REPETITION": 1, "FAIL_LAST": True}, [TEXT, None]),
    ):
        body = {"PROMPT": [TEXT], "STREAM": True, **parameters}
        status, kind, answer = post(url, "generate_stream", body)
        expect((status, kind), (200, EVENTS), answer)
        lines = answer.split("\n\n")
        expect(lines.pop(), "", "the end of the events")
        found = [json.loads(line.removeprefix("data: ")) for line in lines]
        expect([event.get("TEXT") for event in found], events, f"events {parameters}")
        if "FAIL_LAST" in parameters:
            expect(found[-1]["error"], "An Error Occurred", "the last event")
        elif len(events) != 1:
            status, kind, answer = post(url, "generate", body)
            expect(status, 400, answer)
            expect(NOT_ONE in answer, True, answer)
    # The first response is an error: an event, and the status says so as well.
    body = {"PROMPT": TEXT, "STREAM": True, "REPETITION": 0, "FAIL_LAST": True}
    status, kind, answer = post(url, "generate_stream", body)
    expect((status >= 400, kind), (True, EVENTS), answer)
    expect(json.loads(answer.removeprefix("data: "))["error"], "An Error Occurred", "")


def errors(url: str) -> None:
    for body, text in WRONG:
        for what in ("generate", "generate_stream"):
            status, kind, answer = post(url, what, body)
            expect((status, kind), (400, "application/json"), f"{body}: {answer}")
            expect(text in json.loads(answer)["error"], True, answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    url = parser.parse_args().url
    one_response(url)
    responses(url)
    errors(url)
    print("PASS: generate")


if __name__ == "__main__":
    main()
