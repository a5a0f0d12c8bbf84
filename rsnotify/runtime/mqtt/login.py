"""How a client logs in to a broker, and how it verifies the broker."""

from __future__ import annotations

import ssl

from msgspec import Struct

from rsnotify.errors import ConfigurationError


class BrokerLogin(Struct, frozen=True, kw_only=True):
    """The credentials of a client, and the certificates it trusts.

    Args:
        user: The user, if the broker requires one.
        password: The password, a secret.
        ca: A file with the trusted root certificates in PEM format; None for those of the system.
        certificate: A file with the client's certificate, and the intermediate ones.
        key: A file with its private key, where that is not in the same file.
    """

    user: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        """Leave out the password, for logs."""
        return f"BrokerLogin(user={self.user!r})"

    def check(self) -> None:
        """Check the settings and files without a connection, or raise ConfigurationError."""
        if self.password is not None and self.user is None:
            raise ConfigurationError("a password for the broker needs a user, too")
        if self.key is not None and self.certificate is None:
            raise ConfigurationError("a key for the broker needs its certificate, too")
        # The system's certificates are usable, and slow to load.
        if self.ca is not None or self.certificate is not None:
            self.context()

    def context(self) -> ssl.SSLContext:
        context = trusted_context(self.ca)
        if self.certificate is not None:
            try:
                # Without `password`, OpenSSL would ask for a passphrase at the terminal.
                context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
            except (OSError, ValueError) as error:
                where = self.key or self.certificate
                raise ConfigurationError(f"cannot use the key of {where}: {error}") from None
        return context


#: A client without credentials.
ANONYMOUS = BrokerLogin()


def login_of(settings: object, prefix: str = "mqtt_") -> BrokerLogin:
    """Return the login from the attributes `mqtt_user`, `mqtt_password` and so on of settings."""
    fields = BrokerLogin.__struct_fields__
    return BrokerLogin(**{name: getattr(settings, prefix + name) for name in fields})


def trusted_context(ca: str | None) -> ssl.SSLContext:
    """Return a context for the root certificates in a file; for those of the system if None."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also an ssl.SSLError
        raise ConfigurationError(f"cannot use the certificates of {ca}: {error}") from None


def _no_passphrase() -> str:
    raise ValueError("it has a passphrase; give a key without")
