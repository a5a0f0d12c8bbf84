"""The settings of `rsnotify gateway`: a Source's settings, and a table for each origin."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from random import Random
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from rsnotify.errors import without_credentials
from rsnotify.runtime.extensions import offered
from rsnotify.runtime.settings import WrongSetting
from rsnotify.sync.retry import Retry
from rsnotify_gateway.adapters.event_streams import EventMapping
from rsnotify_gateway.adapters.oai_pmh import OaiHarvest
from rsnotify_publisher.config import SourceConfiguration, load_settings
from rsnotify_publisher.outbox.outbox import DEFAULT_TABLE
from rsnotify_subscriber.fetching.credentials import Credentials

#: The factors by which the interval shrinks after a change and grows without one.
_FASTER, _SLOWER = 0.5, 1.5
#: The fraction by which an interval varies, so that origins are not all checked at once.
_JITTER = 0.1
_FIRST_RETRY_SECONDS = 5.0


class PollPace(Struct, frozen=True):
    """The limits of the interval between two checks, in seconds."""

    least: float = 60.0
    most: float = 3600.0

    def next_interval(self, interval: float, *, changed: bool) -> float:
        """Return the next interval: shorter if the last check found changes, otherwise longer."""
        return min(max(interval * (_FASTER if changed else _SLOWER), self.least), self.most)

    def with_jitter(self, interval: float, random: Random) -> float:
        return interval * (1 + _JITTER * (2 * random.random() - 1))

    def after_failure(self, failures: int, random: Random, retry_after: float | None) -> float:
        """Return how long to wait after a number of consecutive failures."""
        retry = Retry(min(_FIRST_RETRY_SECONDS, self.least), max(self.most, self.least))
        return retry.delay(failures, random, at_least=retry_after or 0.0)


# At most about a year, because longer timers overflow.
_Seconds = Annotated[float, Meta(gt=0, le=3e7)]
_Text = Annotated[str, Meta(min_length=1)]


class OriginKind(StrEnum):
    """The built-in types of origins. Other packages can add types."""

    SITEMAP = "sitemap"
    OAI_PMH = "oai-pmh"
    FEED = "feed"
    RESOURCESYNC = "resourcesync"
    IIIF = "iiif"
    LDES = "ldes"
    EVENTS = "events"
    POSTGRESQL = "postgresql"


#: The types, other than OAI-PMH, that have the setting `compare`.
_COMPARED = (OriginKind.RESOURCESYNC, OriginKind.IIIF, OriginKind.POSTGRESQL)


class OriginSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An origin, `[[origin]]` in TOML.

    Args:
        name: The name of the set of resources, which is its path below the base URL.
        type: The protocol: sitemap, oai-pmh, feed, resourcesync, iiif, ldes, events, postgresql, or
            a type that another package adds.
        url: The URL of the Sitemap, repository, feed, stream or database.
        poll: Minimum seconds between checks.
        poll_most: Maximum seconds between checks, reached while nothing changes.
        robots: Whether to respect robots.txt. Set it to false only if the origin's operator agrees.
        delay: Minimum seconds between requests to the origin. A longer Crawl-delay takes
            precedence.
        login: A user and password for the origin, as `user:password`.
        bearer: A Bearer token for the origin.
        allow_private_addresses: Whether the origin may be at a private address.
        described_by: The URL of a document about the origin. By default, the gateway serves one.
        prefix: The metadata format (OAI-PMH).
        set: The set to harvest; None for all records (OAI-PMH).
        overlap: The overlap of successive harvests, in seconds (OAI-PMH).
        compare: Seconds between comparisons with the whole set (OAI-PMH, ResourceSync, IIIF,
            PostgreSQL).
        uri: A template for the URIs of resources; None for the URIs of `GetRecord` requests
            (OAI-PMH).
        event: Where an event states its change (Server-Sent Events).
        table: The name of the outbox (PostgreSQL).
        settings: The settings of a type that another package adds.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
            max_length=100,
            description="a string of letters, digits, _ and -, with single dots between them",
        ),
    ]
    type: _Text
    url: _Text
    poll: _Seconds = PollPace().least
    poll_most: _Seconds = PollPace().most
    robots: bool = True
    delay: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    login: _Text | None = None
    bearer: _Text | None = None
    allow_private_addresses: bool = False
    described_by: str | None = None
    prefix: _Text | None = None
    set: _Text | None = None
    overlap: Annotated[float, Meta(ge=0, le=3e7)] | None = None
    compare: _Seconds | None = None
    uri: (
        Annotated[
            str,
            Meta(
                pattern=r"\{(identifier|local)\}",
                description="a URI with {identifier} or {local} in it",
            ),
        ]
        | None
    ) = None
    event: EventMapping | None = None
    table: _Text | None = None
    settings: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Return a representation without secrets."""
        return f"OriginSettings(name={self.name!r}, type={str(self.type)!r})"

    @property
    def credentials(self) -> Credentials:
        """The credentials to send to the scheme, host and port of the URL."""
        return Credentials(login=self.login, bearer=self.bearer)

    @property
    def public_url(self) -> str:
        """The URL without secrets. For a database, it contains only the name of the outbox."""
        if self.type == OriginKind.POSTGRESQL:
            return f"postgresql:{self.table or DEFAULT_TABLE}"
        return without_credentials(self.url)

    @property
    def pace(self) -> PollPace:
        """The limits of the interval between checks."""
        return PollPace(self.poll, max(self.poll, self.poll_most))

    @property
    def _harvest_settings(self) -> dict[str, Any]:
        names = OaiHarvest.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def harvest(self) -> OaiHarvest:
        """The settings for harvesting an OAI-PMH repository."""
        return OaiHarvest(**self._harvest_settings)

    def check(self) -> None:
        """Raise WrongSetting if the type is unknown, or a setting does not apply to it."""
        if self.type not in offered("origins"):
            others = (name for name in offered("origins") if name not in [*OriginKind])
            raise WrongSetting(
                ("type",), f"it must be one of {', '.join([*OriginKind, *sorted(others)])}"
            )
        known = {"compare"} if self.type in _COMPARED else set()
        wrong = [name for name in self._harvest_settings if name not in known]
        if self.type != OriginKind.OAI_PMH and wrong:
            self._refuse(wrong, OriginKind.OAI_PMH)
        if (self.type == OriginKind.EVENTS) != (self.event is not None):
            raise WrongSetting(
                (),
                f'type = "{OriginKind.EVENTS}" needs a table `event`; other types must not have it',
            )
        if self.type == OriginKind.POSTGRESQL:
            if not self.url.startswith(("postgresql://", "postgres://")):
                raise WrongSetting(("url",), "write postgresql://host/database")
        elif self.table is not None:
            self._refuse(["table"], OriginKind.POSTGRESQL)

    def _refuse(self, names: list[str], kind: OriginKind) -> None:
        raise WrongSetting((), f'only type = "{kind}" accepts {", ".join(names)}; remove it')


class GatewayConfiguration(
    SourceConfiguration, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """All settings of a gateway.

    Args:
        contact: A URL or email address, sent to the origins with each request.
        origins: The origins, `[[origin]]` in TOML.
    """

    contact: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[!-~]+|(mailto:)?[!-~]+@[!-~]+)$",
            description="a URL or email address at which origins can reach you",
        ),
    ]
    origins: tuple[OriginSettings, ...] = msgspec.field(default=(), name="origin")

    def check(self) -> None:
        super().check()
        if self.sets:
            raise WrongSetting(("set",), "a gateway publishes origins; use [[origin]], not [[set]]")
        if not self.origins:
            raise WrongSetting(("origin",), "there is no [[origin]]; add one")
        check_origins("origin", self.origins)


def check_origins(table: str, origins: Sequence[OriginSettings]) -> None:
    """Raise WrongSetting if an origin's settings are wrong, or if two origins share a name."""
    for number, origin in enumerate(origins):
        try:
            origin.check()
        except WrongSetting as wrong:
            raise WrongSetting((table, number, *wrong.path), wrong.reason) from None
        if origin.name in [each.name for each in origins[:number]]:
            reason = f"two origins have the name {origin.name}; rename one"
            raise WrongSetting((table, number, "name"), reason)


load_gateway = partial(load_settings, GatewayConfiguration)
