"""Which properties are RocketMQ's or the sink's own; all others are content, and go with a row as they are.

RocketMQ's MessageConst.STRING_HASH_SET, the names that a Java producer refuses, and those which that list forgets.
"""

from typing import Final

from cometmq.client import audit_stamp
from cometmq.protocol import properties as props
from cometmq.spark.stamps import SPARK_ROW

#: Properties that belong to a message's way through another topic, that have columns, or that the sink writes itself.
#: The buyer is none of these: users set it (Java's Message.setBuyerId).
RESERVED: Final = (props.RESERVED - {props.BUYER_ID}) | {
    SPARK_ROW,
    audit_stamp.PRODUCER,
    audit_stamp.SEQUENCE,
    audit_stamp.VOID,
}
#: What a consumer keeps among the properties of its own copy.
RESERVED_PREFIX: Final = props.TRANSIENT_PREFIX
#: What tells rows apart: content that has columns of its own, and is a property once it is written.
OF_COLUMNS: Final = frozenset({props.TAGS, props.KEYS})
