"""What a user of the Spark source and sink can meet: each says which option or queue it is about, and what to do.

Spark shows the text of an error and nothing else of it, so the remedy is part of the text; and it carries errors from
process to process, so they pickle. Errors of the cluster itself are those of `cometmq.client.errors`.
"""

from cometmq.client.errors import ClientError, SubscriptionRefused
from cometmq.spark.queue_range import QueueId

#: Characters of an option's value that an error shows.
_LONGEST = 500


class SparkSourceError(ClientError):
    """Root of the errors of the Spark source and sink."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        # All arguments go to the base: that is what makes the error pickle.
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy}" if self.remedy else self.cause


class OptionError(SparkSourceError, ValueError):
    """Raised when an option, or a column of a schema, cannot be used as it is given."""

    def __init__(self, option: str, value: str, remedy: str) -> None:
        shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
        super().__init__(f"{option}={shown}" if value else option, remedy)
        self.args = (option, value, remedy)
        self.option = option
        self.value = value


class Unreachable(SparkSourceError):
    """Raised when the cluster, or a broker of a topic, has not answered for longer than a query may wait."""


def filter_refused(error: Exception, expression: str) -> OptionError | None:
    """What a broker that cannot use a filter means for its user; None when the error is about something else."""
    # RocketMQ has no code of its own for a broker whose enablePropertyFilter is false.
    if not isinstance(error, SubscriptionRefused) and "to filter message by" not in str(error):
        return None
    return OptionError(
        "subExpression",
        expression,
        f"a broker cannot filter by it ({error}); correct the expression, set enablePropertyFilter=true on brokers, "
        "or use tags or where() instead",
    )


class DataLoss(SparkSourceError):
    """Raised when messages that a query still had to read are gone, and `failOnDataLoss` is true."""

    def __init__(self, queue: QueueId, wanted: int, have: int, remedy: str) -> None:
        super().__init__(f"{queue}: offset {wanted} is gone, the nearest one there is {have}", remedy)
        self.args = (queue, wanted, have, remedy)
        self.queue = queue
        self.wanted = wanted
        self.have = have
