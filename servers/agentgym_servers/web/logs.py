"""Logs of a server on standard error: one event a line, as text or as JSON."""

from __future__ import annotations

import logging
from typing import Any, Literal

Format = Literal["text", "json"]


def note(logger: logging.Logger, event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields: environment, session (its `brief`), code, ..."""
    logger.log(level, event, extra={"fields": fields})


def brief(session_id: str) -> str:
    """Return as much of a session's id as a log may show: whoever knows the whole id may use the session."""
    return session_id[:8]


def configure(how: Format) -> None:
    """Send this process's logs to standard error. Our events from INFO on, everybody's from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_json_formatter() if how == "json" else _Text("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("agentgym_servers").setLevel(logging.INFO)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return " ".join([super().format(record), *(f"{name}={value}" for name, value in fields.items())])


def _json_formatter() -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter

    class Json(JsonFormatter):
        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            return super().process_log_record({**log_data, **log_data.pop("fields", {})})

    names = {"asctime": "time", "levelname": "level", "name": "logger", "message": "event"}
    return Json("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names)
