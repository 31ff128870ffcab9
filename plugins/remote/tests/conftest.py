"""A bucket in a server of S3, for those who have the libraries."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def _threads_of_fsspec() -> None:
    """Starts those that fsspec keeps from its first call on."""
    with contextlib.suppress(ImportError):
        from fsspec.asyn import get_loop

        loop, count = get_loop(), 4
        helpers = ThreadPoolExecutor(count, "asyncio")
        loop.call_soon_threadsafe(loop.set_default_executor, helpers)
        together = threading.Barrier(count)
        for job in [helpers.submit(together.wait) for _ in range(count)]:
            job.result()


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """Where moto's server is; skipped where it is not installed."""
    pytest.importorskip("s3fs", reason="needs the extra s3")
    pytest.importorskip("moto.server", reason="needs the extra bucket-tests")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """boto3's client of an empty server, and the variables that lead to it."""
    import boto3
    import httpx
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": s3_url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    httpx.post(f"{s3_url}/moto-api/reset", trust_env=False)
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    yield client
    client.close()
    httpx.post(f"{s3_url}/moto-api/reset", trust_env=False)  # closes its files
    s3fs.S3FileSystem.clear_instance_cache()
