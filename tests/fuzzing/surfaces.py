"""Every function of the project that takes bytes from outside, by name."""

from __future__ import annotations

from tests.fuzzing.documents import DOCUMENTS
from tests.fuzzing.messages import MESSAGES
from tests.fuzzing.origins import ORIGINS
from tests.fuzzing.settings import SETTINGS
from tests.fuzzing.surface import Surface

SURFACES: dict[str, Surface] = {**DOCUMENTS, **MESSAGES, **ORIGINS, **SETTINGS}
