"""Does a WebSub hub, any hub, do what the REC asks of hubs? Asked from outside, over HTTP.

The suite is a publisher and several subscribers at once: it serves topics and callbacks of its
own, makes requests to the hub, and looks at what comes back. It knows nothing of any hub's
inside, and so imports nothing else of this package.

    outcomes               what a check says, and how severe a rule is
    ends                   the topics and callbacks that the hub talks to
    bench                  the hub under test, and how it is asked
    registry -> checks/    the rules, each a coroutine that raises what is wrong
    run -> report command  all of them, told as text or JSON
"""
