"""Numbers as strings."""

import argparse
import sys
from typing import Any

import numpy as np
import tritonclient.http as httpclient


def identity(client: Any, array: Any, binary: bool) -> None:
    """Bytes that are no text to look at come back as they went."""
    tensor = httpclient.InferInput("INPUT0", array.shape, "BYTES")
    tensor.set_data_from_numpy(array, binary_data=binary)
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)
    result = client.infer("simple_identity", [tensor], outputs=[wanted])
    found = result.as_numpy("OUTPUT0")
    if not binary:
        array = np.char.decode(array.astype(np.bytes_))
    if not np.array_equal(found, array):
        sys.exit(f"error: {found} instead of {array}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-u", "--url", default="localhost:8000")
    client = httpclient.InferenceServerClient(url=parser.parse_args().url)
    in0 = np.arange(16, dtype=np.int32)
    in1 = np.ones(16, np.int32)

    def strings(array: Any) -> Any:
        made = [str(x).encode("utf-8") for x in array]
        return np.array(made, dtype=np.object_).reshape(1, 16)

    inputs = [
        httpclient.InferInput("INPUT0", [1, 16], "BYTES"),
        httpclient.InferInput("INPUT1", [1, 16], "BYTES"),
    ]
    inputs[0].set_data_from_numpy(strings(in0), binary_data=True)
    inputs[1].set_data_from_numpy(strings(in1), binary_data=False)
    outputs = [
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=True),
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    result = client.infer("simple_string", inputs, outputs=outputs)
    sums, differences = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    for i in range(16):
        if int(sums[0][i]) != in0[i] + in1[i]:
            sys.exit("error: incorrect sum")
        if int(differences[0][i]) != in0[i] - in1[i]:
            sys.exit("error: incorrect difference")
    for element in (b"he\x00llo", b"\x00\x01\x02\x03"):
        for kind in (np.object_, np.bytes_):
            array = np.array([element] * 16, dtype=kind).reshape(1, 16)
            for binary in (True, False):
                identity(client, array, binary)
    print("PASS: string")


if __name__ == "__main__":
    main()
