"""PgBouncer for tests: Debian's program as a child of this process, lending single transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from holdfast.testing.postgres_server import PostgresServer


class PgBouncer:
    """A proxy before a server; `conninfo` and `url` lead through it."""

    def __init__(self, server: PostgresServer) -> None:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not os.path.exists(program):
            raise RuntimeError("PgBouncer is missing: apt-get install pgbouncer")
        self._folder = Path(tempfile.mkdtemp(prefix="hf-pb-", dir="/tmp"))
        os.chmod(self._folder, 0o777)
        socket = server.conninfo.split()[0].removeprefix("host=")
        (self._folder / "users").write_text('"postgres" ""\n')
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host={socket} dbname=postgres user=postgres\n"
            f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {self._folder}\n"
            f"auth_type = trust\nauth_file = {self._folder}/users\n"
            "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n"
        )
        user = "nobody" if os.getuid() == 0 else None
        self._process = subprocess.Popen(
            [program, "-q", str(self._folder / "pgbouncer.ini")],
            user=user,
            stderr=subprocess.DEVNULL,
        )
        self.conninfo = f"host={self._folder} port=6432 user=postgres dbname=postgres"
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def url(self, schema: str) -> str:
        """Return the URL of a store behind the proxy."""
        return (
            f"postgresql:///postgres?host={self._folder}&port=6432&user=postgres"
            f"&schema={schema}&pooler=transaction"
        )

    def stop(self) -> None:
        """End the proxy."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
