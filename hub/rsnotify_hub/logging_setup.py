"""How the hub writes its log: lines of text, or JSON objects."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from rsnotify.format.datetimes import format_datetime

#: What every record has; the rest are the fields of an event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLogFormatter(logging.Formatter):
    """Writes each record as one JSON object on one line.

    Its members are `time`, `level`, `logger`, `message`, `exception` where there is one, and
    whatever was given as `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line = {
            "time": format_datetime(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class RequestTextFilter(logging.Filter):
    """Keeps what a client sent out of the log of the HTTP server.

    aiohttp logs a request that it cannot parse with the line at fault, which may be the one with
    a token.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave the error's own words out, if it is the client's."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def use_json_logs(root: logging.Logger) -> None:
    """Let everything that is logged be JSON."""
    for handler in root.handlers:
        handler.setFormatter(JsonLogFormatter())
