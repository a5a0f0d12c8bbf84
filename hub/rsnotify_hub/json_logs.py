"""Logs in JSON, for the setting `log_format`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from rsnotify.format.datetimes import format_datetime

#: The standard attributes of a log record. All other attributes come from `extra`.
_STANDARD_ATTRIBUTES = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName")
)


def use_json_logs(root: logging.Logger) -> None:
    for handler in root.handlers:
        handler.setFormatter(JsonLogFormatter())


class JsonLogFormatter(logging.Formatter):
    """Formats each record as a JSON object on one line.

    Its members are `time`, `level`, `logger`, `message`, the record's `extra` attributes, and
    `exception` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        extra = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
        }
        line = {
            "time": format_datetime(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
