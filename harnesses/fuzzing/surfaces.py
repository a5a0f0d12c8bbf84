"""Every function of the project that takes bytes from outside, by name."""

from __future__ import annotations

from harnesses.fuzzing.documents import DOCUMENTS
from harnesses.fuzzing.messages import MESSAGES
from harnesses.fuzzing.origins import ORIGINS
from harnesses.fuzzing.settings import SETTINGS
from harnesses.fuzzing.surface import Surface

SURFACES: dict[str, Surface] = {**DOCUMENTS, **MESSAGES, **ORIGINS, **SETTINGS}
