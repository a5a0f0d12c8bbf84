"""The stores of a hub: the interface, and the engines behind it."""
