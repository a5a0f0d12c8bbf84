"""How a client logs in to its XMPP server, and how it verifies the server."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.mqtt.login import trusted_context
from rsnotify.runtime.xmpp.addresses import is_account


class XmppLogin(Struct, frozen=True, kw_only=True):
    """An account at an XMPP server, and the certificates that are trusted.

    Args:
        jid: The account, as `user@example.org`; None for none.
        password: Its password, a secret.
        server: Where the server of the account is, as `host:port`, if DNS does not say so.
        ca: A file with the trusted root certificates in PEM format; None for those of the system.
    """

    jid: str | None = None
    password: str | None = None
    server: str | None = None
    ca: str | None = None

    def __repr__(self) -> str:
        """Leave out the password, for logs."""
        return f"XmppLogin(jid={self.jid!r})"

    @property
    def address(self) -> tuple[str | None, int | None]:
        """The host and port of the server; both None if DNS has to say."""
        if self.server is None:
            return None, None
        host, _, port = self.server.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def check(self) -> None:
        """Check all without a connection, or raise ConfigurationError."""
        if self.jid is None:
            for name in ("password", "server", "ca"):
                if getattr(self, name) is not None:
                    raise ConfigurationError(f"the {name} for XMPP needs the JID of an account")
            return
        if not is_account(self.jid):
            raise ConfigurationError(f"{self.jid!r} is no XMPP account; write user@example.org")
        if not self.password:
            raise ConfigurationError(f"the XMPP account {self.jid} needs its password")
        if self.server is not None:
            host, _, port = self.server.rpartition(":")
            if not host or not (port.isdecimal() and 0 < int(port) < 65_536):
                raise ConfigurationError(f"{self.server!r} is no XMPP server; write host:port")
        if self.ca is not None:
            trusted_context(self.ca)
        check_installed()


#: No account.
NO_ACCOUNT = XmppLogin()


def xmpp_login_of(settings: object, prefix: str = "xmpp_") -> XmppLogin:
    """Return the login from the attributes `xmpp_jid`, `xmpp_password` and so on of settings."""
    fields = XmppLogin.__struct_fields__
    return XmppLogin(**{name: getattr(settings, prefix + name) for name in fields})


def check_installed() -> None:
    """Raise ConfigurationError if slixmpp is missing."""
    try:
        import slixmpp  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "XMPP needs another package: pip install 'rsnotify[xmpp]'"
        ) from None
