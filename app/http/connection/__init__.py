"""One connection over HTTP/1.1: framing, backlog, clocks, and their protocol.

    framing            bytes in; heads, bodies and ends out
    response_framing   the messages of an application in; bytes out
    dispatch           a head in; an exchange, or a cycle of the application, out
    known_head         a head that begins like the one before
    exchange, cycle    a request under way: without ASGI, and with it
    backlog, intake    bytes behind that request, and when they are handled
    flow, turns        when the connection is read from
    clocks, stalls     clients that send or read nothing
    watch, ending      what becomes of their connections, and of refused requests
    ends               who is connected
    counted_connection a connection as the limit of connections sees it
    protocol           the connection itself; what the connections of one socket share

Another framing has a protocol of its own, which hands `Head`s to the same `Dispatch`.
"""
