"""The origins of `[[follow]]`, which are those of `rsnotify gateway`."""

from __future__ import annotations

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.wrong_setting import WrongSetting, convert_settings
from rsnotify_gateway import OriginSettings
from rsnotify_hub.config.configuration import FollowConfig


def origins_of(config: FollowConfig) -> list[OriginSettings]:
    """Return the origins; raise `WrongSetting` if one of them, or the contact, is wrong."""
    origins: list[OriginSettings] = []
    for number, table in enumerate(config.tables):
        origin = convert_settings(table, OriginSettings, "follow", number)
        try:
            origin.check()
        except ConfigurationError as error:
            raise WrongSetting(("follow", number), str(error)) from None
        if origin.name in [each.name for each in origins]:
            reason = f"two origins have the name {origin.name}; rename one"
            raise WrongSetting(("follow", number, "name"), reason)
        origins.append(origin)
    return origins
