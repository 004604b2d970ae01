"""Metrics: a few counters and gauges in the text form that Prometheus reads."""

from __future__ import annotations

from collections import Counter


class Metrics:
    """What the server counts since it was started."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self.streams = 0
        self.events_sent = 0

    def count(self, method: str, status: int) -> None:
        """Count one request that was answered."""
        known = method if method in ("GET", "HEAD", "POST", "DELETE", "PUT", "PATCH") else "OTHER"
        self._requests[known, status] += 1

    def text(self, gauges: dict[str, int]) -> str:
        """Return everything, with gauges that are read now."""
        lines = ["# TYPE holdfast_http_requests_total counter"]
        for (method, status), number in sorted(self._requests.items()):
            labels = f'method="{method}",status="{status}"'
            lines.append(f"holdfast_http_requests_total{{{labels}}} {number}")
        lines += [
            "# TYPE holdfast_http_streams gauge",
            f"holdfast_http_streams {self.streams}",
            "# TYPE holdfast_http_stream_events_total counter",
            f"holdfast_http_stream_events_total {self.events_sent}",
        ]
        for name, value in gauges.items():
            lines += [f"# TYPE holdfast_{name} gauge", f"holdfast_{name} {value}"]
        return "\n".join(lines) + "\n"
