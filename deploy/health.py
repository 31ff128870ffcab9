"""Whether the server of this container lives: the health check of the image.

It asks where the server listens, whether an option of process 1 said so or a variable
of the environment. Ends with 0, or with 1 and a reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx


def server_place(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, str | None]:
    """The URL of a server with these arguments, and its socket if it has one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in (("port", "8000"), ("uds", None), ("tls-cert", None)):
        variable = f"POPGATE_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", default=environment.get(variable) or default)
    given, _ = parser.parse_known_args(arguments)
    scheme = "https" if given.tls_cert else "http"
    return f"{scheme}://127.0.0.1:{given.port}", given.uds


def main(process: str = "1") -> str | None:
    """Why it does not live; None if it does."""
    command = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
    url, uds = server_place(command, os.environ)
    # It asks itself: whose certificate it is does not matter.
    transport = httpx.HTTPTransport(uds=uds, verify=False)
    try:
        with httpx.Client(transport=transport, timeout=2) as client:
            client.get(f"{url}/v1/health/live").raise_for_status()
    except httpx.HTTPError as e:
        return f"{url}: {e}"
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
