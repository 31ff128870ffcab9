"""Three sequences, one after the other; -d takes the models with the identifier."""

import argparse
import sys
import uuid
from typing import Any

import numpy as np
import tritonclient.http as httpclient


def send(client: Any, values: Any, sequence_id: Any, model: str) -> Any:
    results = []
    for index, value in enumerate(values):
        tensor = httpclient.InferInput("INPUT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full([1, 1], value, np.int32))
        result = client.infer(
            model_name=model,
            inputs=[tensor],
            outputs=[httpclient.InferRequestedOutput("OUTPUT")],
            sequence_id=sequence_id,
            sequence_start=index == 0,
            sequence_end=index == len(values) - 1,
        )
        results.append(int(result.as_numpy("OUTPUT")[0][0]))
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    parser.add_argument("-d", "--dyna", action="store_true")
    parser.add_argument("-o", "--offset", type=int, default=0)
    flags = parser.parse_args()
    client = httpclient.InferenceServerClient(url=flags.url)
    number_model = "simple_dyna_sequence" if flags.dyna else "simple_sequence"
    text_model = "simple_string_dyna_sequence" if flags.dyna else "simple_sequence"
    values = [11, 7, 5, 3, 2, 0, 1]
    id0, id1 = 1000 + flags.offset * 2, 1001 + flags.offset * 2
    text_id = str(flags.offset * 2 + 1002) if flags.dyna else str(uuid.uuid4())
    negative = [-value for value in values]
    result0 = send(client, [0, *values], id0, number_model)
    result1 = send(client, [100, *negative], id1, number_model)
    result2 = send(client, [20, *negative], text_id, text_model)
    for i in range(len(result0)):
        expected0 = 1 if i == 0 else values[i - 1]
        expected1 = 101 if i == 0 else negative[i - 1]
        if i == 0:
            expected2 = 20 if flags.dyna else 21
        elif flags.dyna:
            expected2 = negative[i - 1] + result2[i - 1]
        else:
            expected2 = negative[i - 1]
        # The identifier is added to the last one.
        if flags.dyna and i != 0 and values[i - 1] == 1:
            expected0 += id0
            expected1 += id1
            expected2 += int(text_id)
        found = (result0[i], result1[i], result2[i])
        if found != (expected0, expected1, expected2):
            sys.exit(f"[{i}] {found}, not {(expected0, expected1, expected2)}")
    print("PASS: Sequence")


if __name__ == "__main__":
    main()
