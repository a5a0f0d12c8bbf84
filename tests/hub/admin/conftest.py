from __future__ import annotations

import pytest

from tests.hub.admin.admin_user import AdminUser
from tests.hub.helpers import Client


@pytest.fixture
def admin(hub: Client) -> AdminUser:
    return AdminUser(hub)
