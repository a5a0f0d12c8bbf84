"""The hub at an MQTT broker: everything goes there, and what Sources publish there is taken."""
