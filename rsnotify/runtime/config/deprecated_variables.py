"""Former names of environment variables, without the name of the command."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

_log = logging.getLogger("rsnotify")


def is_former(environ: Mapping[str, str], old: str, new: str) -> bool:
    """Return whether a variable is set by its former name, and not equally by the present one."""
    return bool(environ.get(old)) and environ.get(old) != environ.get(new)


def warn_of_former(old: str, new: str) -> None:
    """Warn of a variable with a former name, which several commands read."""
    if os.environ.get(new):
        text = "the variable %s is not used, since %s is set; remove it, or name its command in it"
    else:
        text = "the variable %s may be meant for another command: name it %s"
        text += "; the next release ignores the former name"
    _log.warning(text, old, new)
