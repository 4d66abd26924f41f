"""Archive: topics to Parquet by topic, day and hour, each message exactly once, for any reader of Parquet.

A stream of the source; each batch is published by `publication` under its number, so that a batch that Spark runs again
after a crash is there once. Hours that are over are compacted between batches. Kafka Connect's S3 sink is the model of
the layout.
"""

import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cometmq.spark.jobs import asked, runs
from cometmq.spark.jobs.archive_files import ARCHIVE, PARTITIONS, laid_out
from cometmq.spark.jobs.compaction import FILE_SIZE, Closing, check_file_size, compact, hours_of
from cometmq.spark.jobs.errors import NotAnArchive
from cometmq.spark.jobs.messages import Messages
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, Silence
from cometmq.spark.jobs.ownership import Ownership, owner_of
from cometmq.spark.jobs.publication import Publication

#: Messages of one batch at most, unless the caller says otherwise: what is lost by a kill is done again.
BATCH_ROWS: Final = 2_000_000
#: Hours are looked at for compaction after so many batches, and at the end.
COMPACT_EVERY: Final = 20


def archive(
    spark: SparkSession,
    topics: str | Iterable[str],
    output: str,
    *,
    name_server: str | None = None,
    checkpoint: str | None = None,
    trigger: str = "available-now",
    interval: str = "1 minute",
    since: datetime | None = None,
    options: Mapping[str, str] | None = None,
    compact_closed: bool = True,
    file_size: int = FILE_SIZE,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Archive what topics have, from their beginning or from `since`, and go on there the next time.

    `trigger` is `available-now` (all there is), `once` (one batch) or `continuous` with `interval`. The checkpoint is
    `<output>.checkpoint`; archive and checkpoint belong together.
    """
    messages = Messages.of(topics, name_server, options, since)
    messages.check()
    if not {"maxoffsetspertrigger", "maxbytespertrigger"} & set(map(str.lower, messages.options)):
        messages = messages.with_options(maxOffsetsPerTrigger=str(BATCH_ROWS))
    when = runs.Trigger.of(trigger, interval)
    return archive_stream(
        messages.stream(spark),
        output,
        since=since,
        trigger=when,
        checkpoint=checkpoint,
        compact_closed=compact_closed,
        file_size=check_file_size(file_size),
        display=display,
        stop=stop,
    )


def archive_stream(
    stream: DataFrame,
    output: str,
    *,
    since: datetime | None = None,
    trigger: runs.Trigger,
    checkpoint: str | None = None,
    compact_closed: bool = True,
    file_size: int = FILE_SIZE,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Archive a stream that has the source's columns: what `archive` does, for a stream that was changed before.

    `since` says where the stream begins: who changes it for the same checkpoint is told that it is not heard.
    """
    meter = Meter("archive", counts_bytes=True)
    publication = Publication(stream.sparkSession, output)
    checkpoint = checkpoint or f"{publication.directory}.checkpoint"
    ownership = Ownership(stream.sparkSession, publication, checkpoint, ARCHIVE)
    ownership.check()
    with display or Silence() as shown, ownership.opened():
        meter.note(asked.note(stream.sparkSession, checkpoint, {asked.BEGIN: asked.time(since)}))
        writer = _BatchWriter(publication, ownership, meter, file_size if compact_closed else None)
        runs.run(
            stream.writeStream.foreachBatch(writer.write),
            trigger,
            checkpoint=checkpoint,
            meter=meter,
            display=shown,
            stop=stop,
        )
        if stop is None or not stop.is_set():  # whoever stops it does not want to wait
            writer.compact_closed(stream.sparkSession)
    return meter.metrics()


class _BatchWriter:
    """Publishes the batches of one run."""

    def __init__(self, publication: Publication, ownership: Ownership, meter: Meter, file_size: int | None) -> None:
        self._publication = publication
        self._ownership = ownership
        self._meter = meter
        self._file_size = file_size
        self._closing = Closing(publication)

    def write(self, rows: DataFrame, number: int) -> None:
        batch, counted = self._ownership.batch(number), Observation()
        files = self._publication.publish(
            laid_out(rows).observe(counted, F.count(F.lit(1)).alias("rows")), batch, partition_by=PARTITIONS
        )
        if files is None:
            return
        self._meter.add(int(counted.get["rows"]), sum(file.size for file in files))
        self._meter.count("files", len(files))
        self._closing.add(files)
        if number % COMPACT_EVERY == COMPACT_EVERY - 1:
            self.compact_closed(rows.sparkSession)

    def compact_closed(self, spark: SparkSession) -> None:
        """Join the small files of the hours that are over."""
        if self._file_size is not None:
            hours = self._closing.over(datetime.now(UTC))
            compact(spark, self._publication, hours, file_size=self._file_size, meter=self._meter)


def compact_archive(
    spark: SparkSession,
    directory: str,
    *,
    file_size: int = FILE_SIZE,
    display: Display | None = None,
) -> Metrics:
    """Join the small files of all hours of an archive, those that are not over included."""
    meter = Meter("archive")
    publication = Publication(spark, directory)
    if owner_of(publication.lake, ARCHIVE) is None:
        raise NotAnArchive(f"{publication.directory} is no archive", "name the --output of the archive job")
    with display or Silence() as shown, publication.opened():
        hours = hours_of(publication)
        for number, hour in enumerate(hours):
            compact(spark, publication, [hour], file_size=check_file_size(file_size), meter=meter)
            meter.backlog = len(hours) - number - 1
            shown.show(meter)
    return meter.metrics()
