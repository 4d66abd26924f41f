"""What a connection may cost: every limit has a name, a unit and a reason."""

import msgspec

from cometmq.protocol.frame import MAX_FRAME

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the connections of one server or client. Sizes are bytes, times are seconds."""

    #: Longest frame that is accepted, its length word included.
    frame: int = MAX_FRAME
    #: Unsent output of a connection above which its requests are no longer read, and below which they are again.
    #: Four and one of the usual 64 KiB socket buffers: enough to keep a fast peer busy.
    high_water: int = 256 * KIB
    low_water: int = 64 * KIB
    #: Unsent output above which nothing more is added: the peer does not read, so it is closed. One turn's answers
    #: may go beyond it, because a consumer of many queues may be owed that much at once.
    unsent: int = 64 * MIB
    #: How long output may wait without a byte of it being taken before the peer is closed.
    stall_timeout: float = 60.0
    #: How long a frame may take from its first byte to its last.
    frame_timeout: float = 60.0
    #: Bytes of incomplete frames of all connections together: 32 frames of full size. Above it the connection that
    #: holds most is closed.
    partial: int = 512 * MIB
    #: A connection without a byte in either direction is closed after this time, as RocketMQ does on both sides.
    idle_timeout: float = 120.0
    #: How long a connection that is being closed may take to send its last answers. Also the time that a peer which
    #: has closed its sending side is given: RocketMQ's clients are gone by then, and cost a write that fails.
    close_timeout: float = 5.0
    #: A client closes a connection when a request has timed out and no byte at all came for this long meanwhile: the
    #: peer is frozen or the link is cut, and TCP alone would notice after a quarter of an hour. 0 turns it off.
    silence_timeout: float = 1.0
