"""What is told of a record once it is in the log. RocketMQ's DispatchRequest."""

import msgspec


class DispatchRequest(msgspec.Struct, frozen=True, gc=False):
    """What dispatchers learn of a record."""

    topic: str
    queue_id: int
    physical_offset: int
    #: Of the record, in bytes.
    size: int
    #: As the consume queue holds it: the hash of the tags, or the time of delivery in the schedule topic.
    tags_code: int
    store_timestamp: int
    #: Of the (first) message.
    queue_offset: int
    keys: bytes | None
    unique_key: bytes | None
    sys_flag: int
    prepared_transaction_offset: int
    properties: bytes
    #: Messages in the record: more than one for an inner batch.
    batch_size: int = 1
