"""Options as environment variables: RSNOTIFY_SOURCE_PORT is `--port` of `rsnotify source`.

The name of the command is part of that of the variable, so that one environment can hold settings
of several commands. Names without it are accepted for one release. An option that typer may not
name itself (`allow_from_autoenv`) has the same variable in every command.
"""

from __future__ import annotations

import os
from typing import Any

from typer.core import TyperOption

from rsnotify.runtime.config.former_variables import is_former, warn_of_former

_PREFIX = "RSNOTIFY_"


class Variables:
    """A command whose options are environment variables too; a base beside one of typer's."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and warn of former names of variables that were used."""
        former = {}
        for option in self.params:
            if (
                isinstance(option, TyperOption)
                and option.expose_value
                and option.allow_from_autoenv
            ):
                name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
                new = f"{_PREFIX}{ctx.info_name.upper()}_{name}"
                old = option.envvar or f"{_PREFIX}{option.name.upper()}"
                option.envvar = new
                if isinstance(old, str) and is_former(os.environ, old, new):
                    option.envvar = [new, old]
                    former[option.name] = old, new
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        for parameter, names in former.items():
            source = ctx.get_parameter_source(parameter)
            if source is not None and source.name == "ENVIRONMENT":
                warn_of_former(*names)
        return rest
