"""Delivery of notifications to callbacks (WebSub §7).

To follow one delivery, read in this order: `sender` (what is sent, and what its answer means),
`scheduler` (when it may start), `requests` (the POST) and `runtime.http` (the connection).
"""
