"""What one shows a broker, and how the broker is told from an impostor."""

from __future__ import annotations

import ssl

from msgspec import Struct

from rsnotify.errors import ConfigurationError


class BrokerLogin(Struct, frozen=True, kw_only=True):
    """Who one is to a broker.

    Args:
        user: The user, if the broker wants one.
        password: The password, a secret.
        ca: A file with the certificates that the broker's has to come from, in PEM format; None
            takes those of the system.
        certificate: A file with one's own certificate, and those between it and the root.
        key: A file with its private key, where that is not in the same file.
    """

    user: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        """Leave out what a log must not tell."""
        return f"Login(user={self.user!r})"

    def check(self) -> None:
        """Check what can be checked before there is a connection.

        Raises:
            ConfigurationError: A file cannot be used, or something is missing.
        """
        if self.password is not None and self.user is None:
            raise ConfigurationError("a password for the broker needs a user, too")
        if self.key is not None and self.certificate is None:
            raise ConfigurationError("a key for the broker needs its certificate, too")
        # What is of the system can be used; to load it takes a while.
        if self.ca is not None or self.certificate is not None:
            self.context()

    def context(self) -> ssl.SSLContext:
        """Make what TLS needs.

        Raises:
            ConfigurationError: A file cannot be used.
        """
        context = _context(self.ca)
        if self.certificate is not None:
            try:
                # A key with a passphrase is refused, instead of asked for at the terminal.
                context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            except (OSError, ValueError) as error:
                where = self.key or self.certificate
                raise ConfigurationError(f"cannot use the key of {where}: {error}") from None
        return context


#: Somebody who shows nothing.
ANONYMOUS = BrokerLogin()


def _context(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also an ssl.SSLError
        raise ConfigurationError(f"cannot use the certificates of {ca}: {error}") from None


def _no_passphrase() -> str:
    raise ValueError("it has a passphrase; give a key without")
