"""Arguments of a `Subscriber` and a `Relay`, as tests give them: all by keyword, in one dict."""

from __future__ import annotations

from typing import Any

from rsnotify_subscriber import FollowOptions


def gathered(given: dict[str, Any], into: str = "options") -> dict[str, Any]:
    """Return arguments in which all options of following are one `FollowOptions`.

    Args:
        given: The arguments; `hubs` of a relay are those to which it pushes.
        into: The name of the argument for the options.
    """
    names = set(FollowOptions.__struct_fields__) - ({"hubs"} if into == "follow" else set())
    options = {name: given[name] for name in given if name in names}
    rest = {name: given[name] for name in given if name not in names}
    return {**rest, into: FollowOptions(**options)}
