"""All errors that rsnotify raises, in one tree.

    RsnotifyError
    ├── DocumentError            a document is unacceptable
    │   ├── MalformedDocument        not well-formed, truncated, or with a DOCTYPE
    │   ├── WrongDocument            well-formed, but not the ResourceSync document expected here
    │   └── InvalidDocument          a ResourceSync document that breaks a rule of the specification
    │       ├── TooLarge                 beyond the limits for one document
    │       └── PatchError               a patch is invalid, or does not fit the content
    ├── FetchError               a URI could not be fetched
    │   ├── NotFound                 the server answers 404
    │   │   └── Gone                     the server answers 410
    │   ├── Unavailable              no usable answer; a later attempt may succeed
    │   │   ├── NotCopied                resources could not be copied in several attempts
    │   │   ├── NotPermitted             a broker does not permit an action
    │   │   ├── ConnectionRefused        a broker refuses a message
    │   │   └── UnsupportedVersion       a broker lacks an MQTT version (runtime.mqtt_connection)
    │   ├── ContentMismatch          the content does not have the announced hash, length or type
    │   └── RefusedAddress           the address is not public, so rsnotify does not connect to it
    ├── ConfigurationError       the settings or arguments cannot work
    │   ├── WrongOption              an option of a command has a wrong value
    │   ├── WrongSetting             a setting is wrong (runtime.settings)
    │   ├── MissingExtension         an extension is not installed (runtime.extensions)
    │   └── SeveralSets              a URI leads to several sets; the user must choose one
    ├── StorageError             the journal, log or state cannot be read or written
    │   └── StoreUnavailable         a handler cannot reach its store; it is called again later
    ├── Unreachable              no connection could be opened (runtime.http_client)
    ├── NoReply                  a host does not answer with valid HTTP (runtime.http_client)
    │   └── StaleConnection          a pooled connection had ended (runtime.http_client)
    ├── TruncatedBody            a body is shorter than announced (runtime.web_messages)
    ├── ClientDisconnected       a client disconnected (runtime.web_messages)
    ├── PacketTooLong            an MQTT packet is too long (runtime.mqtt_streams)
    └── ProcessError             a subcommand failed as a child process (runtime.processes)

The other packages derive their own errors from these, next to the code that raises them.

Details are attributes, so that programs do not have to parse messages. A message states the
problem, the place and, where possible, the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Maximum length of a reason in a message, in characters.
_MAX_REASON_LENGTH = 500
#: Maximum number of resources to list in a message.
_MAX_LISTED_RESOURCES = 10
_CREDENTIALS = re.compile(r"//[^/?#]*@")


def without_credentials(uri: str) -> str:
    """Return a URI without its user name and password, for messages."""
    return _CREDENTIALS.sub("//", uri)


def _shortened(reason: str) -> str:
    """Limit the length of a reason, because it may quote an untrusted document."""
    return reason if len(reason) <= _MAX_REASON_LENGTH else f"{reason[:_MAX_REASON_LENGTH]}…"


class RsnotifyError(Exception):
    """The base class of all errors that rsnotify raises.

    Attributes:
        retry_after: Number of seconds after which the other side requested a retry, if it did.
        remedy: What the user must change, as a clause, if waiting does not help.
    """

    retry_after: float | None = None
    remedy: str | None = None


class DocumentError(RsnotifyError):
    """A document is unacceptable, and no part of it is applied.

    Args:
        reason: The defect, as a clause without the place.
        source: The URI or path of the document, if known.
        entry: The 1-based position of the invalid `<url>` or `<sitemap>`, if known.
    """

    def __init__(self, reason: str, *, source: str | None = None, entry: int | None = None) -> None:
        self.reason = reason
        self.source = source
        self.entry = entry
        super().__init__(reason, source, entry)

    def at(self, source: str) -> DocumentError:
        """Return the same error for the document at `source`."""
        return type(self)(self.reason, source=source, entry=self.entry)

    def __str__(self) -> str:
        place = without_credentials(self.source or "document")
        if self.entry is not None:
            place = f"{place}, entry {self.entry}"
        return f"{place}: {_shortened(without_credentials(self.reason))}"


class MalformedDocument(DocumentError):
    """A document is not well-formed XML, is truncated, or contains a refused construct."""


class WrongDocument(DocumentError):
    """A document is well-formed, but of another kind than expected."""


class InvalidDocument(DocumentError):
    """A ResourceSync document breaks a rule of the specification."""


class TooLarge(InvalidDocument):
    """A document exceeds a limit. Retries would fail in the same way, at the same cost."""


class PatchError(InvalidDocument):
    """A patch is invalid, or does not fit the content.

    Args:
        reason: The defect.
        condition: For an XML patch, the name of the error in RFC 5261 §5.
    """

    def __init__(self, reason: str, condition: str = "invalid-patch-directive") -> None:
        super().__init__(reason)
        self.condition = condition


class FetchError(RsnotifyError):
    """A URI could not be fetched.

    Args:
        uri: The requested URI.
        reason: The reason for the failure, as a clause without the URI.
    """

    def __init__(self, uri: str, reason: str) -> None:
        self.uri = uri
        self.reason = reason
        super().__init__(uri, reason)

    def __str__(self) -> str:
        return f"{without_credentials(self.uri)}: {_shortened(without_credentials(self.reason))}"


class NotFound(FetchError):
    """The server responds that the resource does not exist (404)."""


class Gone(NotFound):
    """The server responds that the resource is permanently gone (410)."""


#: Status codes below 500 after which an early retry may succeed: Request Timeout, Too Early, Too
#: Many Requests.
_TRANSIENT_STATUSES = (408, 425, 429)


class Unavailable(FetchError):
    """There was no usable response. A later attempt may succeed.

    Args:
        uri: The requested URI.
        reason: The reason for the failure.
        retry_after: Number of seconds after which the server requested a retry, if it did.
        status: The status of the HTTP response, if there was one.
    """

    def __init__(
        self,
        uri: str,
        reason: str,
        retry_after: float | None = None,
        *,
        status: int | None = None,
    ) -> None:
        super().__init__(uri, reason)
        self.retry_after = retry_after
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether an early retry may succeed: the server did not respond, is busy, or failed."""
        return self.status is None or self.status >= 500 or self.status in _TRANSIENT_STATUSES


class NotCopied(Unavailable):
    """Resources that the Source announced could not be copied.

    Args:
        uris: The URIs of the resources.
        reason: The reason why the first of them could not be copied.
    """

    def __init__(self, uris: Sequence[str], reason: str) -> None:
        super().__init__(uris[0], reason)
        self.uris = tuple(uris)

    def __str__(self) -> str:
        text = f"{super().__str__()}; several attempts failed"
        if len(self.uris) == 1:
            return text
        named = ", ".join(map(without_credentials, self.uris[:_MAX_LISTED_RESOURCES]))
        more = len(self.uris) - _MAX_LISTED_RESOURCES
        rest = f", and {more:,} more" if more > 0 else ""
        return f"{text}. {len(self.uris):,} resources could not be copied: {named}{rest}"


class ContentMismatch(FetchError):
    """The hash, length or media type of the content differs from the announced one."""


class RefusedAddress(FetchError):
    """A document or untrusted request contains an address that is not public."""


class ConfigurationError(RsnotifyError):
    """Settings or arguments cannot work. The message says what to change."""


class WrongOption(ConfigurationError):
    """An option, such as `resource_list_every`, has a wrong value.

    `reason` is a clause with the error or the allowed values.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.option = f"--{name.replace('_', '-')}"
        self.reason = reason
        super().__init__(f"{self.option}: {reason}")


class SeveralSets(ConfigurationError):
    """A URI leads to several sets of resources, and the user must choose one.

    `where` is the document that lists the sets, and `found` are the URIs of their Capability Lists,
    Source Descriptions or Sitemaps.
    """

    def __init__(self, message: str, where: str, found: tuple[str, ...]) -> None:
        super().__init__(message)
        self.where = where
        self.found = found


class StorageError(RsnotifyError):
    """A journal, log or state cannot be read or written."""


class StoreUnavailable(StorageError):
    """Raised by a handler that cannot reach its store. The subscriber calls it again later.

    Args:
        reason: What is unavailable, and why.
        retry_after: Number of seconds after which the store requested a retry, if it did.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def counted(number: int, thing: str, things: str = "") -> str:
    """Format a number with its noun: `1 resource`, `5,000 resources`.

    `things` is the plural, unless it only adds an `s`.
    """
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


class NotPermitted(Unavailable):
    """A broker does not permit an action. Waiting does not help, but `remedy` does."""

    def __init__(self, uri: str, reason: str, remedy: str) -> None:
        super().__init__(uri, f"{reason}; {remedy}")
        self.remedy = remedy


class ConnectionRefused(Unavailable):
    """A broker refuses a message. Without a remedy, the refusal may be temporary.

    `is_final` means that all retries would fail, for example of a message that is too large.
    """

    def __init__(
        self, uri: str, reason: str, *, is_final: bool = False, remedy: str | None = None
    ) -> None:
        super().__init__(uri, reason if remedy is None else f"{reason}; {remedy}")
        self.is_final = is_final
        self.remedy = remedy
