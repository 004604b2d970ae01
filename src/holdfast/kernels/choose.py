"""Which kernel: `auto` takes the strongest confinement there is, and says which it chose.

On Linux with Landlock and seccomp that is `cpython`, confined by the operating system; elsewhere
`monty`, confined by its language. Running model-written code without confinement needs a switch of
its own and, where there is a choice, the engine's name; then every profile but one that requires
`os` accepts it. A profile that requires `os` is refused where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.capability import Capability
from holdfast.core.errors import (
    CapabilityDenied,
    ConfinementMissing,
    InvalidSettings,
    WorkerRefused,
    needing,
)
from holdfast.kernels import cards, confinement
from holdfast.kernels.port import Kernel

NAMES = ("cpython", "monty")
_STRENGTH = {"none": 0, "language": 1, "os": 2}
# What a store, a fork server and a worker open for one cell, and then some.
_DESCRIPTORS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that was chosen, and what the model is told about it."""

    name: str
    kernel: Kernel
    card: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that cells may import; what the model is told of them is in the log."""

    @property
    def confinement(self) -> str:
        """Return how cells are confined: os, language or none."""
        return self.kernel.flags.confinement


class Kernels:
    """The engines of one runtime, made when first needed."""

    def __init__(
        self,
        *,
        allow_unconfined: bool = False,
        memory_bytes: int | None = None,
        environment: str | None = None,
    ) -> None:
        """Make none yet; workers of cpython hold about `memory_bytes` together, by default half
        of the machine's memory. Packages come from `environment`, by default that of the host.
        """
        self.environment = environment
        self._allow_unconfined = allow_unconfined
        self._memory_bytes = memory_bytes
        self._made: dict[str, Choice] = {}
        self._lock = asyncio.Lock()

    @property
    def allow_unconfined(self) -> bool:
        """Tell whether code may run without confinement where there is none."""
        return self._allow_unconfined

    async def choose(self, name: str, capability: Capability | None = None) -> Choice:
        """Return an engine by name, or the best one for `auto`; refuse one that is too weak."""
        async with self._lock:
            engine = self._best() if name == "auto" else name
            if engine not in NAMES:
                raise InvalidSettings(
                    f"kernel {name!r} is not a valid engine: use auto, {' or '.join(NAMES)}"
                )
            choice = self._made.get(engine)
            if choice is None:
                choice = self._made[engine] = await asyncio.to_thread(self._make, engine)
        if capability is not None:
            self._require(choice, capability.confinement)
            _check_descriptors()
            if capability.packages:
                return await asyncio.to_thread(self._with_packages, choice, capability.packages)
        return choice

    async def close(self) -> None:
        """Stop every worker."""
        made, self._made = list(self._made.values()), {}
        for choice in made:
            await choice.kernel.close()

    def _best(self) -> str:
        missing = confinement.available().missing
        if not missing:
            return "cpython"
        if importlib.util.find_spec("pydantic_monty") is not None:
            return "monty"
        if self._allow_unconfined:
            return "cpython"
        raise ConfinementMissing(
            f"this machine cannot confine a worker ({'; '.join(missing)}) and the monty engine is "
            "not installed: pip install 'holdfast[monty]', or allow unconfined code explicitly"
        )

    def _make(self, engine: str) -> Choice:
        if engine == "monty":
            with needing("monty", "kernel 'monty'"):
                from holdfast.kernels.monty import CARD, MontyKernel

            return Choice(engine, MontyKernel(), CARD)
        from holdfast.kernels.cpython import CpythonKernel

        missing = confinement.available().missing
        if not (missing and self._allow_unconfined):
            kernel = CpythonKernel(memory_bytes=self._memory_bytes, environment=self.environment)
            return Choice(engine, kernel, cards.cpython())
        _log.warning(
            "kernel 'cpython' runs model-written code unconfined, with the rights of this process, "
            "as was explicitly allowed; missing: %s",
            "; ".join(missing),
        )
        kernel = CpythonKernel(
            confined=False, memory_bytes=self._memory_bytes, environment=self.environment
        )
        return Choice(engine, kernel, cards.cpython(confined=False))

    def _with_packages(self, choice: Choice, packages: tuple[str, ...]) -> Choice:
        if not choice.kernel.flags.packages:
            raise CapabilityDenied(
                f"kernel {choice.name!r} has no packages to import, but gate 'packages' allows "
                f"{', '.join(packages)}; use kernel 'cpython', or leave them out",
                gate="packages",
            )
        confined = choice.confinement == "os"
        kernel: Any = choice.kernel
        versions = kernel.packages(packages).versions
        named = tuple(f"{name} {versions[name]}" for name in packages)
        return replace(choice, card=cards.cpython(named, confined=confined), versions=versions)

    def _require(self, choice: Choice, wanted: str) -> None:
        # The switch stands for "language", which every profile asks for at least.
        accepted = "none" if self._allow_unconfined and wanted == "language" else wanted
        if _STRENGTH[choice.confinement] < _STRENGTH[accepted]:
            missing = "; ".join(confinement.available().missing)
            raise ConfinementMissing(
                f"confinement {wanted!r} is required, but kernel {choice.name!r} has "
                f"{choice.confinement!r} here{missing and f' ({missing})'}; use a machine with "
                "Landlock and seccomp, or a profile that accepts less",
                required=wanted,
                available=choice.confinement,
            )


def _check_descriptors() -> None:
    """Raise WorkerRefused before any work where too few descriptors are left to run a cell."""
    with contextlib.ExitStack() as taken:
        try:
            for _ in range(_DESCRIPTORS):
                taken.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise WorkerRefused(
                f"cells cannot be run here: {error}; allow this process more open files "
                "(`ulimit -n`), or run fewer sessions at once"
            ) from error
