"""The entry point of the fork server: make its packages importable, and serve.

The real `holdfast` package imports the runtime and third-party code, so the names are put into
`sys.modules` by hand and only the few standalone modules below them are loaded. This script is
compiled on every start, so it stays tiny.
"""

import sys


def place_packages(root: str) -> None:
    """Make `holdfast.core` and `holdfast.kernels` importable without running their packages."""
    for name in ("holdfast", "holdfast.core", "holdfast.kernels"):
        module = type(sys)(name)
        module.__path__ = [root + name.replace(".", "/")]
        sys.modules[name] = module


if __name__ == "__main__":
    place_packages(__file__[: -len("holdfast/kernels/worker/start.py")])
    from holdfast.kernels.worker.fork_server import ForkServer

    ForkServer(int(sys.argv[1])).serve()
