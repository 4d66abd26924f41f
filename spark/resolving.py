"""From the place that an option names to an offset of each queue: the cluster is asked, once.

Kafka's KafkaOffsetReader (fetchSpecificOffsets and fetchGlobalTimestampBasedOffsets).
"""

from collections.abc import Collection, Sequence

from cometmq.spark.cluster import Bounds, Cluster, Offsets
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.offsets import topics_of
from cometmq.spark.queue_range import QueueId
from cometmq.spark.starting import ANY, AtEnd, AtOffsets, AtTime, End, Numbers, Place


def resolve(
    place: Place,
    queues: Sequence[QueueId],
    cluster: Cluster,
    *,
    patience: float,
    fail_on_data_loss: bool = True,
    chosen: Sequence[QueueId] | None = None,
) -> Offsets:
    """The offsets of a place. `patience`: seconds that brokers may take to answer. `chosen`: what the user may name,
    where that is more than these queues."""
    if isinstance(place, AtEnd):
        question = cluster.earliest if place.end is End.EARLIEST else cluster.latest
        return cluster.surely(question, queues, patience)
    numbers = place.numbers if isinstance(place, AtOffsets) or place.time is None else None
    if numbers is not None:
        _check_rules(numbers, queues if chosen is None else chosen)
    bounds = cluster.bounds(queues, patience)
    if isinstance(place, AtOffsets):
        return {queue: _offset(place, queue, bounds[queue], fail_on_data_loss) for queue in queues}
    return _at_time(place, queues, bounds, cluster, patience)


def check_order(starting: Place, ending: Place, queues: Collection[QueueId]) -> None:
    """OptionError when offsets that a user gave end before they start."""
    if not isinstance(starting, AtOffsets) or not isinstance(ending, AtOffsets):
        return
    for queue in queues:
        first, stop = starting.numbers.of(queue), ending.numbers.of(queue)
        if 0 <= stop < first:
            raise OptionError(
                ending.numbers.option, "", f"{queue} would end at {stop}, before it starts at {first}; swap the two"
            )


def _check_rules(numbers: Numbers, queues: Collection[QueueId]) -> None:
    """A topic, a broker or a queue that is not read is a misspelt one."""
    for topic in sorted(numbers.topics - set(topics_of(queues))):
        raise OptionError(
            numbers.option,
            "",
            f"the topic {topic} is not read; {', '.join(topics_of(queues))} is",
        )
    for topic, broker, queue_id in numbers.rules:
        fitting = [each for each in queues if each.topic == topic and broker in (ANY, each.broker)]
        if not any(queue_id in (ANY, each.queue_id) for each in fitting):
            wanted = f"broker {broker}" if not fitting else f"queue {queue_id}"
            there = ", ".join(f"{each.broker}: {each.queue_id}" for each in sorted(queues) if each.topic == topic)
            raise OptionError(numbers.option, "", f"{wanted} of topic {topic} is not read; {there} is")


def _offset(place: AtOffsets, queue: QueueId, bounds: Bounds, fail_on_data_loss: bool) -> int:
    number = place.numbers.of(queue)
    if number == End.EARLIEST:
        return bounds.first
    if number == End.LATEST:
        return bounds.after_last
    if number > bounds.after_last:
        raise OptionError(
            place.numbers.option,
            "",
            f"{queue} ends at {bounds.after_last}, {number} is beyond that; -1 stands for its end",
        )
    if number < bounds.first:
        if fail_on_data_loss:
            remedy = f"give at least that to {place.numbers.option}, or -2 for the earliest, or failOnDataLoss=false"
            raise DataLoss(queue, number, bounds.first, remedy)
        return bounds.first
    return number


def _at_time(
    place: AtTime, queues: Sequence[QueueId], bounds: dict[QueueId, Bounds], cluster: Cluster, patience: float
) -> Offsets:
    times = {queue: place.of(queue) for queue in queues}
    # Brokers of 4.x name the last message for a time after it, so it is looked at first.
    late = {queue for queue, moment in times.items() if _is_after_all(moment, bounds[queue])}
    if late and not place.or_latest:
        queue = min(late)
        is_empty = bounds[queue].first == bounds[queue].after_last
        problem = "is empty; set" if is_empty else "has no message of that time or later; take an earlier time, or set"
        raise OptionError(
            place.option, str(times[queue]), f"{queue} {problem} startingOffsetsByTimestampStrategy=latest"
        )
    sought = {queue: moment for queue, moment in times.items() if queue not in late}
    found = cluster.surely(lambda missing: cluster.at_times({each: sought[each] for each in missing}), sought, patience)
    return found | {queue: bounds[queue].after_last for queue in late}


def _is_after_all(moment: int, bounds: Bounds) -> bool:
    return bounds.first == bounds.after_last or bounds.last_stored < moment
