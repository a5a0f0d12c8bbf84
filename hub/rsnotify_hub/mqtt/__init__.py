"""MQTT: the hub publishes all topics to a broker, and Sources may publish through it."""
