"""Every function of the project that takes bytes from outside, by name."""

from __future__ import annotations

from tests.harnesses.fuzzing.documents import DOCUMENTS
from tests.harnesses.fuzzing.messages import MESSAGES
from tests.harnesses.fuzzing.origins import ORIGINS
from tests.harnesses.fuzzing.settings import SETTINGS
from tests.harnesses.fuzzing.surface import Surface

SURFACES: dict[str, Surface] = {**DOCUMENTS, **MESSAGES, **ORIGINS, **SETTINGS}
