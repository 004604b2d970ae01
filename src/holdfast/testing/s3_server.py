"""An object store for tests: a server in this process, on loopback, that speaks S3's protocol.

    blobs = open_blobs(shared_bucket("my-prefix"))

It comes with the `moto` package and keeps everything in memory. The credentials that it takes are
put into the environment, where those of a real one would be.
"""

from __future__ import annotations

import functools
import os
import urllib.request
from urllib.parse import urlencode

BUCKET = "holdfast-test"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@functools.cache
def endpoint() -> str:
    """Return the address of the server of this process, started when it is first asked for."""
    from moto.server import ThreadedMotoServer

    os.environ.update(CREDENTIALS)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    making = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
    with urllib.request.urlopen(making, timeout=30):
        return address


def shared_bucket(prefix: str) -> str:
    """Return the URL of a place of its own on the server of this process."""
    options = urlencode({"endpoint": endpoint(), "region": "us-east-1"})
    return f"s3://{BUCKET}/{prefix}?{options}"
