"""Checks whether a WebSub hub, any hub, conforms to the W3C Recommendation, over HTTP.

The suite acts as a publisher and as several subscribers: it serves its own topics and callbacks,
sends requests to the hub, and checks the responses and deliveries. It knows nothing about the
internals of any hub, and imports nothing of `rsnotify_hub`.

    outcomes               the result of a check, and the level of a requirement
    endpoints, callback    the topics and callbacks that the hub uses
    hub_under_test         the hub, and the requests to it
    registry -> checks/    the requirements, each a coroutine that raises an error
    run -> report command  runs all checks, and reports as text or JSON
"""
