from tests.hub.attacks.helpers import names

__all__ = ["names"]
