"""The format of the program's log: JSON lines, and no text of clients' requests."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from rsnotify.format.datetimes import format_datetime

#: The attributes of every record; all others were given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLogFormatter(logging.Formatter):
    """Formats each record as one JSON object on one line.

    Its members are `time`, `level`, `logger`, `message`, `exception` if there is one, and those
    given as `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
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
    """Keeps the text of requests out of the log of the HTTP server.

    aiohttp logs a request that it cannot parse with the line at fault, which may contain a token.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def use_json_logs(root: logging.Logger) -> None:
    for handler in root.handlers:
        handler.setFormatter(JsonLogFormatter())
