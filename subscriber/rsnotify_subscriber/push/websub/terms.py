"""What is asked of hubs, and what is taken from them."""

from __future__ import annotations

from msgspec import Struct

from rsnotify.sync.retry import Retry


class WebSubTerms(Struct, frozen=True, kw_only=True):
    """What a user may tune. Times are in seconds.

    Args:
        lease: The lease that a hub is asked for; it may grant another.
        secret: Whether hubs are given a secret, each subscription another. Without one,
            whoever learns of a callback can send it anything.
        signatures: The methods of signatures that are taken, of `sha1`, `sha256`, `sha384` and
            `sha512`.
        refuse: Whether content whose signature is missing or wrong is answered with 403. If not,
            the answer is as to any other (WebSub §7.1.2). It is never used.
        patience: How long a hub may take to ask back, and to send the whole of a request.
        settle: How long a hub may take to begin to deliver, once it has been answered.
        quiet: After so long without content a hub is asked anew, whether it is still there;
            where content is always rarer, after twice the longest such time.
        retry: The waits between tries to renew a lease.
    """

    lease: int = 86_400
    secret: bool = True
    signatures: tuple[str, ...] = ("sha256", "sha384", "sha512")
    refuse: bool = True
    patience: float = 30.0
    settle: float = 2.0
    quiet: float = 15.0
    retry: Retry = Retry(first=1.0, most=300.0)


DEFAULT_TERMS = WebSubTerms()
