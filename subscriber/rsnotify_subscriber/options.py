"""`FollowOptions`: how the library, the commands, relays and fleets follow a Source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import force_setattr

from rsnotify.errors import ConfigurationError
from rsnotify.format.media_types import is_media_type
from rsnotify.runtime.arguments import require, require_struct
from rsnotify.runtime.transport_extensions import check_logins, has_account, transport_of
from rsnotify.selection import Selection
from rsnotify.sync.pace import Pace
from rsnotify_subscriber.content.patches import Patch
from rsnotify_subscriber.fetching.credentials import NO_CREDENTIALS, Credentials
from rsnotify_subscriber.fetching.fetcher import MAX_CONTENT_BYTES
from rsnotify_subscriber.fetching.sessions import PER_HOST
from rsnotify_subscriber.push.mqtt_transport import DEFAULT_MQTT, MqttOptions
from rsnotify_subscriber.push.websub_callbacks import Callbacks
from rsnotify_subscriber.push_options import BUILT_IN, DEFAULT_TERMS, Via, WebSubTerms


class FollowOptions(Struct, frozen=True, kw_only=True):
    """The options of a `Subscriber` or a `Relay`, checked on creation.

    The arguments concern what is copied, how changes arrive, requests, and the files of a mirror.

    Args:
        selection: The part of the set to follow. If it has changed since the last run, the whole
            copy is compared with the Source again.
        prefer: A media type, or several, best first. If the Source offers an alternate
            representation of such a type, the copy holds that instead (core §14.3).
        exact: Whether to fetch the version of each change rather than the current one, if the
            Source keeps versions (core §14.6).
        patches: Functions that apply patches, by media type. Each takes the old content and the
            patch, and returns the new content. rsnotify includes JSON Patch, JSON Merge Patch and
            XML Patch, and other packages can provide more.
        largest: Maximum size of a resource without an announced length, in bytes.
        via: The transport by which changes arrive.
        hubs: Number of hubs to stay connected to at the same time, best first.
        pace: The frequency of document requests, and the amount of concurrent work.
        callbacks: Receives WebSub deliveries. Subscribers may share it.
        terms: The terms that a relay requests of hubs over WebSub if it makes its own `callbacks`.
        mqtt: How to connect to MQTT brokers.
        logins: The logins for other transports, by the scheme of their URLs: an `XmppLogin` as
            `xmpp`, without which no PubSub service is used.
        credentials: The credentials for the origin of the Source; by default, its netrc entry.
        allow_private_addresses: Whether URLs in documents may have hosts at loopback and private
            addresses. The host of the Source's URL may always have such an address, for documents
            at the port of that URL, and for hubs at any port.
        per_host: Maximum number of concurrent connections to one host. For a subscriber in a fleet,
            the maximum number of its concurrent requests.
        check_files: Seconds between two comparisons of the sizes and modification times of a
            mirror's files with the stored values. They are also compared at the start, and when
            everything is compared with the Source; with 0, only then. A `CheckedHandler` compares
            its store at the same times.
        verify: Whether to read all files of a mirror at the start, and verify their hashes.
        adopt: Whether the folder of a first copy may already contain files. Those with the
            announced hash become part of the copy without being fetched.

    Raises:
        ConfigurationError: A value has the wrong type or is not valid.
    """

    # What is copied.
    selection: Selection = Selection()
    prefer: str | Sequence[str] = ()
    exact: bool = False
    patches: Mapping[str, Patch] = {}
    largest: int = MAX_CONTENT_BYTES
    # How changes arrive.
    via: Via = Via.AUTO
    hubs: int = 1
    pace: Pace = Pace()
    callbacks: Callbacks | None = None
    terms: WebSubTerms = DEFAULT_TERMS
    mqtt: MqttOptions = DEFAULT_MQTT
    logins: Mapping[str, Struct] = {}
    # Requests.
    credentials: Credentials = NO_CREDENTIALS
    allow_private_addresses: bool = False
    per_host: int = PER_HOST
    # The files of a mirror.
    check_files: float = 86_400.0
    verify: bool = False
    adopt: bool = False

    def __post_init__(self) -> None:
        """Check all values. `via` may be a plain string, and `prefer` a single media type."""
        require("hubs", self.hubs, int, "a number")
        require("per_host", self.per_host, int, "a number")
        require("largest", self.largest, int, "a number of bytes")
        require("check_files", self.check_files, int | float, "a number of seconds")
        require("verify", self.verify, bool, "True or False")
        require("adopt", self.adopt, bool, "True or False")
        require("callbacks", self.callbacks, Callbacks | None, "Callbacks")
        require_struct("terms", self.terms, WebSubTerms)
        require("mqtt", self.mqtt, MqttOptions, "a MqttOptions")
        require("logins", self.logins, Mapping, "a dict from schemes to logins")
        require("credentials", self.credentials, Credentials, "Credentials")
        require("patches", self.patches, Mapping, "a dict from media types to functions")
        require("prefer", self.prefer, str | Sequence, "a media type, or a list of media types")
        require_struct("pace", self.pace, Pace)
        require_struct("selection", self.selection, Selection)
        self.selection.check()
        self.mqtt.check()
        check_logins(self.logins)
        if self.hubs < 1:
            raise ConfigurationError(f"hubs is {self.hubs}; give 1 or more")
        if not 0 <= self.check_files < inf:
            raise ConfigurationError(
                f"check_files is {self.check_files}; give a number of seconds, or 0"
            )
        force_setattr(self, "via", _via(self.via))
        if self.via not in BUILT_IN and not has_account(self.logins, self.via):
            transport = transport_of(self.via)
            raise ConfigurationError(f"{transport.name} needs a login: {transport.needs}")
        prefer = (self.prefer,) if isinstance(self.prefer, str) else tuple(self.prefer)
        for media_type in prefer:
            if not is_media_type(media_type) or "*" in media_type:
                raise ConfigurationError(
                    f"{media_type!r} is not a media type; write it as text/turtle"
                )
        force_setattr(self, "prefer", prefer)


def _via(via: str) -> Via:
    try:
        return Via(via)
    except ValueError:
        raise ConfigurationError(f"via is {via!r}; give one of {', '.join(Via)}") from None


DEFAULT_OPTIONS = FollowOptions()
