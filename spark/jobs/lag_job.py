"""Lag: how many messages groups have still to consume, sampled over time to a table and a chart.

The driver asks the brokers (`backlog`), Spark keeps the table (`sample_table`). Samples are published every half a
minute: a kill loses those, and the next run adds to the same table.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cometmq.protocol.errors import CometMQError
from cometmq.spark.access import Access
from cometmq.spark.access_options import ACCESS, access_of
from cometmq.spark.jobs.backlog import Sampled, Sampler
from cometmq.spark.jobs.messages import names_in
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, ResultTable, Silence
from cometmq.spark.jobs.publication import Publication
from cometmq.spark.jobs.results import SAMPLES, claim
from cometmq.spark.jobs.sample_table import SampleTable, latest
from cometmq.spark.option_texts import OptionTexts

log = logging.getLogger(__name__)


def lag(
    spark: SparkSession,
    output: str,
    groups: str | Iterable[str] = (),
    *,
    name_server: str | None = None,
    interval: float = 10.0,
    samples: int | None = 1,
    chart: str | None = None,
    options: Mapping[str, str] | None = None,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Sample the backlog of groups, or of all, every `interval` seconds, so many times (None: until `stop` is set).

    `output` is a directory of Parquet by day; samples are added to it. `chart` and the report are about the last days.
    What a broker does not say is missing; when none answers for a while after the first sample, samples are.
    """
    meter = Meter("lag")
    wanted = names_in(groups)
    sampler = Sampler(_access(name_server, options or {}), wanted)
    is_new = claim(spark, output, SAMPLES)
    publication = Publication(spark, output)
    table = SampleTable(spark, publication, chart)
    with display or Silence() as shown, publication.opened(is_new=lambda: is_new):
        tried = 0
        stopped = stop or threading.Event()
        meter.details |= {"samples": 0, "missedSamples": 0}
        while not stopped.is_set():
            tried += 1
            try:
                found = sampler.sample(datetime.now(UTC))
            except CometMQError as error:
                # What never worked is a mistake of the caller; later somebody is away, and comes back.
                if not meter.details["samples"]:
                    raise
                log.warning("a sample is missing: %s", error)
                meter.count("missedSamples")
            else:
                _count(found, meter)
                table.add(found.samples)
            shown.show(meter)
            is_last = samples is not None and tried >= samples
            if is_last or stopped.wait(interval):
                break
        table.close()
        meter.tables["groups"] = ResultTable.of(latest(table.recent()), 1000)
    if chart is not None:
        meter.details["chart"] = chart
    return meter.metrics()


def _count(found: Sampled, meter: Meter) -> None:
    meter.count("samples")
    meter.add(len(found.samples))
    if not found.missing:
        meter.backlog = sum(each.backlog for each in found.samples)
        return
    for address, error in found.missing.items():
        log.warning("a sample lacks what %s has: %s", address, error)
    meter.count("partialSamples")


def check_groups(groups: Iterable[str], name_server: str | None, options: Mapping[str, str]) -> None:
    """Raise what is wrong with the options, the nameservers or the groups, before Spark does anything."""
    Sampler(_access(name_server, options), names_in(groups)).sample(datetime.now(UTC))


def _access(name_server: str | None, options: Mapping[str, str]) -> Access:
    given = ({"nameServer": name_server} if name_server else {}) | dict(options)
    texts = OptionTexts(given, ACCESS.values())
    texts.check_names()
    return access_of(texts)
