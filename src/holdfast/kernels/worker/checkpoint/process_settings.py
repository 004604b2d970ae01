"""Settings of the process that one cell changes and a later one relies on.

The environment, the working directory, where modules are looked for, which warnings are shown and
what is logged where: a restored worker has them as they were. They are part of the checkpoint, as
one text, where they are not what every worker begins with. The model may have put anything in the
place of what is asked here, so whatever fails is left as it is.
"""

from __future__ import annotations

import os
import sys
import warnings

from holdfast.kernels.worker.wire.channel import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    _Read = Callable[[], Any]
    _Write = Callable[[Any], Any]
    _Set = Callable[[Any], None]

LONGEST = 8000  # as the host has it
_STYLES = {"PercentStyle": "%", "StrFormatStyle": "{", "StringTemplateStyle": "$"}


class ProcessSettings:
    """The settings of this process, and what they were when its session began."""

    def __init__(self, streams: dict[str, Any]) -> None:
        self._streams = streams
        # Where the engine lets modules be found: another place in every process.
        self.own_paths: set[str] = set()
        # How each is read, written as JSON and set. Reading is quick: it is done after every cell.
        self._parts: dict[str, tuple[_Read, _Write, _Set]] = {
            "environ": (lambda: dict(os.environ), dict, _set_environ),
            "folder": (os.getcwd, str, os.chdir),
            "path": (self._path, list, self._set_path),
            "digits": (sys.get_int_max_str_digits, int, sys.set_int_max_str_digits),
            "warnings": (_filters, lambda filters: [*map(_as_json, filters)], _set_filters),
            "logging": (self._loggers, dict, self._set_loggers),
        }
        self._first: dict[str, Any] = {}

    def begin(self) -> None:
        """Remember what every worker of the session begins with."""
        self._first = {name: read() for name, (read, _, _) in self._parts.items()}

    def text(self) -> str:
        """Return what the checkpoint keeps: nothing where all is as it was at the start."""
        changed: dict[str, Any] = {}
        for name, (read, write, _) in self._parts.items():
            try:
                now = read()
                if now != self._first[name]:
                    changed[name] = write(now)
            except Exception:
                continue
        if not changed:
            return ""
        try:
            text = dumps(changed).decode("utf-8")
        except Exception:
            return ""
        return text if len(text) <= LONGEST else ""

    def restore(self, text: str) -> None:
        """Go on with the settings of a checkpoint."""
        if not text:
            return
        import json

        for name, value in json.loads(text).items():
            try:
                self._parts[name][2](value)
            except Exception:
                continue

    def _path(self) -> list[str]:
        return [path for path in sys.path if path not in self.own_paths]

    def _set_path(self, value: list[str]) -> None:
        sys.path[:] = [*value, *sorted(self.own_paths)]

    # Logging

    def _loggers(self) -> Any:
        logging = sys.modules.get("logging")
        if logging is None:
            return {}
        root = logging.root
        loggers = {
            name: self._logger(item)
            for name, item in root.manager.loggerDict.items()
            if type(item) is logging.Logger
            and (item.level or item.handlers or item.disabled or not item.propagate)
        }
        if root.level != logging.WARNING or root.handlers or root.disabled:
            loggers[""] = self._logger(root)
        disabled = root.manager.disable
        return {"loggers": loggers, "disabled": disabled} if loggers or disabled else {}

    def _logger(self, logger: Any) -> list[Any]:
        handlers = [self._handler(handler) for handler in logger.handlers]
        kept = [handler for handler in handlers if handler is not None]
        return [logger.level, logger.propagate, logger.disabled, kept]

    def _handler(self, handler: Any) -> list[Any] | None:
        logging = sys.modules["logging"]
        stream = getattr(handler, "stream", None)
        name = next((name for name, item in self._streams.items() if item is stream), None)
        if type(handler) is not logging.StreamHandler or name is None:
            return None
        formatter = handler.formatter
        if formatter is None:
            return [name, handler.level, None]
        style = _STYLES[type(formatter._style).__name__]
        return [name, handler.level, [formatter._fmt, formatter.datefmt, style]]

    def _set_loggers(self, value: Any) -> None:
        import logging

        logging.disable(value["disabled"])
        for name, (level, propagate, disabled, handlers) in value["loggers"].items():
            logger = logging.getLogger(name) if name else logging.root
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled
            logger.handlers[:] = [self._made(*handler) for handler in handlers]

    def _made(self, stream: str, level: int, formatter: Any) -> Any:
        import logging

        handler = logging.StreamHandler(self._streams[stream])
        handler.setLevel(level)
        if formatter is not None:
            fmt, datefmt, style = formatter
            handler.setFormatter(logging.Formatter(fmt, datefmt, style))
        return handler


def _set_environ(value: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(value)


def _filters() -> list[Any]:
    return list(warnings.filters)


def _as_json(item: Any) -> list[Any]:
    action, message, category, place, line = item
    return [action, _pattern(message), _named(category), _pattern(place), line]


def _pattern(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return [value.pattern, value.flags]


def _named(category: type) -> list[str]:
    return [category.__module__, category.__qualname__]


def _set_filters(value: list[Any]) -> None:
    made = [
        (action, _compiled(message), _category(*category), _compiled(place), line)
        for action, message, category, place, line in value
    ]
    # Forgets which warnings were shown before, too, which setting the list alone would not.
    warnings.resetwarnings()
    warnings.filters[:] = made  # type: ignore[index]


def _compiled(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    import re

    return re.compile(*value)


def _category(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)
