"""Apache RocketMQ's remoting protocol as values: bytes in, typed values out, and back.

Nothing here opens a socket or a file, and nothing awaits. The package imports nothing by itself; take what you need:

    from cometmq.protocol.codec import decode, encode_request     # frames
    from cometmq.protocol.requests.send import SendMessageV2      # typed headers, one module a subject
    from cometmq.protocol.bodies.route import TopicRouteData      # typed bodies
    from cometmq.protocol.record import decode_records            # stored messages

docs/architecture.md says which module owns what.
"""
