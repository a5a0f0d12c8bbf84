"""Every error rsnotify raises, in one tree.

    RsnotifyError
    ├── DocumentError            somebody sent a document we cannot accept
    │   ├── MalformedDocument        not well-formed, truncated, or a refused construct (DOCTYPE)
    │   ├── WrongDocument            well-formed, but not the ResourceSync document expected here
    │   └── InvalidDocument          a ResourceSync document that breaks a rule of the specification
    │       └── TooLarge                 more than is read of one document
    ├── FetchError               a URI could not be fetched
    │   ├── NotFound                 the server says 404
    │   │   └── Gone                     the server says 410
    │   ├── Unavailable              no answer, or an answer that may be better later
    │   ├── ContentMismatch          the content is not what its hash or length promised
    │   └── RefusedAddress           a document or a stranger named an address we do not dial
    ├── ConfigurationError       the user asked for something that cannot work
    │   ├── WrongOption              an option of a command has a wrong value
    │   └── SeveralSets              a URI leads to several sets of resources; one must be named
    └── StorageError             the journal, log or state cannot be read or written

Facts are fields, so that a program need not parse a message; messages say what, where
and what to do.
"""

from __future__ import annotations

import re

#: Characters of a reason that a message tells.
_LONGEST = 500
_CREDENTIALS = re.compile(r"//[^/?#]*@")


def without_credentials(uri: str) -> str:
    """Leave out a user's name and password, which a message must not tell."""
    return _CREDENTIALS.sub("//", uri)


def _brief(reason: str) -> str:
    """Leave out what is too long for a message: a stranger's document may be quoted."""
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"


class RsnotifyError(Exception):
    """The base of every error that rsnotify raises."""

    #: Seconds that the other side asked to wait before the next try, if it did.
    retry_after: float | None = None
    #: What the user has to change, as a clause, where waiting does not help.
    remedy: str | None = None


class DocumentError(RsnotifyError):
    """A document that cannot be accepted; nothing of it is applied.

    Args:
        reason: What is wrong, as a clause without the place.
        source: Where the document came from (a URI or a path), if known.
        entry: The 1-based position of the `<url>` or `<sitemap>` at fault, if one is.
    """

    def __init__(self, reason: str, *, source: str | None = None, entry: int | None = None) -> None:
        self.reason = reason
        self.source = source
        self.entry = entry
        super().__init__(reason, source, entry)

    def at(self, source: str) -> DocumentError:
        """Return the same error, told of the document at `source`."""
        return type(self)(self.reason, source=source, entry=self.entry)

    def __str__(self) -> str:
        """Return the reason, led by the place."""
        place = without_credentials(self.source or "document")
        if self.entry is not None:
            place = f"{place}, entry {self.entry}"
        return f"{place}: {_brief(self.reason)}"


class MalformedDocument(DocumentError):
    """Not well-formed XML, ended too early, or a construct that is refused."""


class WrongDocument(DocumentError):
    """A sound document of another kind than the one expected."""


class InvalidDocument(DocumentError):
    """A ResourceSync document that breaks a rule it cannot be used without."""


class TooLarge(InvalidDocument):
    """More than is read of one document. To read it once more would cost as much again."""


class FetchError(RsnotifyError):
    """A URI could not be fetched.

    Args:
        uri: What was asked for.
        reason: Why it failed, as a clause without the URI.
    """

    def __init__(self, uri: str, reason: str) -> None:
        self.uri = uri
        self.reason = reason
        super().__init__(uri, reason)

    def __str__(self) -> str:
        """Return the URI and the reason."""
        return f"{without_credentials(self.uri)}: {_brief(without_credentials(self.reason))}"


class NotFound(FetchError):
    """The server says that the resource is not there (404)."""


class Gone(NotFound):
    """The server says that the resource is gone, and means it (410)."""


class Unavailable(FetchError):
    """No usable answer this time; a later try may succeed.

    Args:
        uri: What was asked for.
        reason: Why it failed.
        retry_after: Seconds the server asked to wait, if it did.
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


class ContentMismatch(FetchError):
    """The content's hash or length differs from what was announced."""


class RefusedAddress(FetchError):
    """A document, or a stranger's request, named an address that is not dialled."""


class ConfigurationError(RsnotifyError):
    """The user asked for something that cannot work; the message says what to change."""


class WrongOption(ConfigurationError):
    """An option of a command has a wrong value.

    Args:
        name: The option without its dashes, as `resource_list_every`.
        reason: What is wrong, and what may be there, as a clause.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.option = f"--{name.replace('_', '-')}"
        self.reason = reason
        super().__init__(f"{self.option}: {reason}")


class SeveralSets(ConfigurationError):
    """A URI leads to several sets of resources, of which the user has to name one.

    Args:
        message: What to change.
        where: The document that names them.
        found: Their Capability Lists, Source Descriptions or Sitemaps.
    """

    def __init__(self, message: str, where: str, found: tuple[str, ...]) -> None:
        super().__init__(message)
        self.where = where
        self.found = found


class StorageError(RsnotifyError):
    """A journal, log or state file cannot be read or written."""
