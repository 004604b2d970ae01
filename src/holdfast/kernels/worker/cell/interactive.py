"""The builtins of an interactive Python that a worker, which starts without `site`, lacks."""

from __future__ import annotations

import sys

from holdfast.kernels.worker.cell.host_calls import HostFunction
from holdfast.kernels.worker.determinism.timed_waits import replace_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def offer(builtins: Any) -> None:
    """Put `exit`, `quit` and `help` into a module of builtins."""

    # Two functions, since each is kept in a checkpoint by its own name.
    def leave(code: Any = None) -> NoReturn:
        """Raise SystemExit: the cell ends here, as an error."""
        raise SystemExit(code)

    def leave_as_well(code: Any = None) -> NoReturn:
        """Raise SystemExit: the cell ends here, as an error."""
        raise SystemExit(code)

    replace_function(builtins, "exit", leave)
    replace_function(builtins, "quit", leave_as_well)
    replace_function(builtins, "help", _help)


def _help(*things: Any) -> None:
    """Print what is documented about a thing, or about a name given as text."""
    if things and isinstance(things[0], HostFunction):
        # Its type, which `pydoc` would describe, says nothing about it.
        print(f"{things[0]!r}\n\n{things[0].__doc__ or ''}".rstrip())
        return
    import io
    import pydoc

    # With an output of its own it starts no pager, and without input it asks no questions.
    pydoc.Helper(io.StringIO(), sys.stdout)(*things)
