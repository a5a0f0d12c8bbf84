"""Options as environment variables: RSNOTIFY_SOURCE_PORT is `--port` of `rsnotify source`.

The name of the command is part of that of the variable, so that one environment can hold settings
of several commands. Names without it are accepted for one release.
"""

from __future__ import annotations

import os
from typing import Any

from typer.core import TyperOption

from rsnotify.host.variables import is_former, warn_of_former

_PREFIX = "RSNOTIFY_"


class Variables:
    """A command whose options are environment variables too; a base before one of typer's."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and warn of former names of variables that were used."""
        former, lists = {}, {}
        for option in self.params:
            if isinstance(option, TyperOption) and option.expose_value:
                name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
                new = f"{_PREFIX}{ctx.info_name.upper()}_{name}"
                old = option.envvar or f"{_PREFIX}{option.name.upper()}"
                if not option.allow_from_autoenv:
                    lists[option.name] = new
                    continue
                if option.envvar or new != f"{ctx.auto_envvar_prefix}_{option.name.upper()}":
                    option.envvar = new
                if isinstance(old, str) and is_former(os.environ, old, new):
                    option.envvar = [new, old]
                    former[option.name] = old, new
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        for parameter, variable in lists.items():
            # Its values have spaces, at which a variable would be split: so each has a line.
            lines = list(filter(str.strip, os.environ.get(variable, "").splitlines()))
            if lines and not ctx.params.get(parameter):
                ctx.params[parameter] = lines
        for parameter, names in former.items():
            source = ctx.get_parameter_source(parameter)
            if source is not None and source.name == "ENVIRONMENT":
                warn_of_former(*names)
        return rest
