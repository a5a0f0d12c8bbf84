"""rsnotify: push-extended ResourceSync. This package is shared by all others.

`format`, `sync` and `selection` are pure: they open no sockets or files, start no threads and read
no clock. `rsnotify_publisher`, `rsnotify_hub` and `rsnotify_subscriber` do the I/O, and `runtime`
contains the I/O that these three share.
"""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify.errors import (
        ConfigurationError,
        ContentMismatch,
        DocumentError,
        FetchError,
        Gone,
        InvalidDocument,
        MalformedDocument,
        NotCopied,
        NotFound,
        PatchError,
        RefusedAddress,
        RsnotifyError,
        StorageError,
        StoreUnavailable,
        TooLarge,
        Unavailable,
        WrongDocument,
    )
    from rsnotify.format.model import Capability, ChangeType, Link, Rel, Resource
    from rsnotify.selection import Selection

__all__ = [
    "Capability",
    "ChangeType",
    "ConfigurationError",
    "ContentMismatch",
    "DocumentError",
    "FetchError",
    "Gone",
    "InvalidDocument",
    "Link",
    "MalformedDocument",
    "NotCopied",
    "NotFound",
    "PatchError",
    "RefusedAddress",
    "Rel",
    "Resource",
    "RsnotifyError",
    "Selection",
    "StorageError",
    "StoreUnavailable",
    "TooLarge",
    "Unavailable",
    "WrongDocument",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify.errors": __all__,  # except the following
            "rsnotify.format.model": ("Capability", "ChangeType", "Link", "Rel", "Resource"),
            "rsnotify.selection": ("Selection",),
        },
    )

__version__ = "1.0.0rc1"
