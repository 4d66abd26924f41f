"""ETL: topics, through SQL or a function on the DataFrame, to a topic or a table.

    etl(spark, "orders", sql="select json.id as keys, text as body from messages where json.amount > 10",
        json_schema="id string, amount int", to_topic="big-orders", name_server=...)

The messages have the source's columns, `text` (the body as UTF-8) and, with a schema, `json` (null where the body is no
such JSON). To files exactly once (`publication`), to a topic at least once with stamps, to other formats as they give.
"""

import importlib
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from importlib.util import find_spec
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cometmq.spark import options as source_options
from cometmq.spark import sink_options
from cometmq.spark.access_options import of_access
from cometmq.spark.jobs import asked, runs
from cometmq.spark.jobs.errors import JobError, raised_at, told
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.messages import FORMAT, VIEW, Messages
from cometmq.spark.jobs.metrics import Display, Meter, Metrics, Silence
from cometmq.spark.jobs.ownership import TABLE, Ownership
from cometmq.spark.jobs.publication import FILE_FORMATS, Publication
from cometmq.spark.jobs.session_tables import location_of, look_again, register
from cometmq.spark.sink_columns import check_columns

Transformation = Callable[[DataFrame], DataFrame]

_MODES: Final = ("append", "update", "complete")


def etl(
    spark: SparkSession,
    topics: str | Iterable[str],
    *,
    sql: str | None = None,
    function: str | Transformation | None = None,
    json_schema: str | None = None,
    to_topic: str | None = None,
    output: str | None = None,
    table: str | None = None,
    format: str = "parquet",
    partition_by: Iterable[str] = (),
    output_mode: str = "append",
    output_options: Mapping[str, str] | None = None,
    name_server: str | None = None,
    to_name_server: str | None = None,
    since: datetime | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    trigger: str = "available-now",
    interval: str = "10 seconds",
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Metrics:
    """Transform topics, by `sql` over the view `messages` or by a function (`package.module:name` or itself).

    One of `to_topic`, `output` (a directory of a file format, or the path of another format) and `table` says where to.
    """
    meter = Meter("etl")
    if sum(place is not None for place in (to_topic, output, table)) != 1:
        raise JobError("it is not said where the result goes", "give one of to_topic, output and table")
    if output_mode not in _MODES:
        raise JobError(f"there is no output mode {output_mode!r}", f"give one of {', '.join(_MODES)}")
    when = runs.Trigger.of(trigger, interval)
    change = _transformation(sql, function)
    messages = Messages.of(topics, name_server, options, since)
    messages.check()
    result = transformed(messages.stream(spark), change, json_schema)
    if output is not None:
        output = Lake(spark, output).root if format in FILE_FORMATS else output.rstrip("/")
    place = checkpoint or f"{output or f'etl-{to_topic or table}'}.checkpoint"
    further = dict(output_options or {})
    question = {
        "sql": sql,
        "function": function if function is None or isinstance(function, str) else _name_of(function),
        "jsonSchema": json_schema,
        asked.BEGIN: asked.time(since),
    }
    with display or Silence() as shown:

        def run(writer: DataStreamWriter, into: str | None = None) -> None:
            meter.note(asked.note(spark, place, question))
            runs.run(
                writer.outputMode(output_mode),
                when,
                checkpoint=place,
                meter=meter,
                display=shown,
                stop=stop,
                count_rows=True,
                table=into,
            )

        location = location_of(spark, table) if table is not None and format in FILE_FORMATS else None
        if to_topic is not None:
            run(_to_topic(result, to_topic, to_name_server, messages, further))
        elif output is not None and format in FILE_FORMATS:
            _to_files(result, output, None, place, format, tuple(partition_by), output_mode, further, run)
        elif location is not None:
            _to_files(result, location, table, place, format, tuple(partition_by), output_mode, further, run)
        else:
            writer = result.writeStream.format(format).options(**further).partitionBy(*partition_by)
            run(writer if output is None else writer.option("path", output), table)
    return meter.metrics()


# What is done to the messages


def _transformation(sql: str | None, function: str | Transformation | None) -> Transformation:
    if (sql is None) == (function is None):
        raise JobError("it is not said what to do with the messages", "give either sql or a function")
    if sql is not None:
        return _by_sql(sql)
    if isinstance(function, str):
        return _by_function(named_function(function), function)
    assert function is not None
    return _by_function(function, _name_of(function))


def _by_sql(sql: str) -> Transformation:
    def change(messages: DataFrame) -> DataFrame:
        messages.createOrReplaceTempView(VIEW)
        try:
            return messages.sparkSession.sql(sql)
        except (AnalysisException, ParseException) as error:
            raise JobError(
                f"the SQL cannot be used: {told(error)}",
                f"select from the view {VIEW}, which has the columns {', '.join(messages.columns)}",
            ) from error

    return change


def _by_function(function: Transformation, name: str) -> Transformation:
    def change(messages: DataFrame) -> DataFrame:
        try:
            return function(messages)
        except Exception as error:
            raise JobError(f"the function {name} failed: {raised_at(error)}", "mend it") from error

    return change


def _name_of(function: Transformation) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


def check_name(name: str) -> None:
    """Whether a function may be there, before Spark starts: many a module can be imported only afterwards."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise JobError(f"{name!r} names no function", "write package.module:function")
    first = module_name.partition(".")[0]  # to look for the others would import it
    try:
        is_there = find_spec(first) is not None
    except ValueError:  # a module that was made by hand
        is_there = True
    if not is_there:
        raise _not_found(name, f"No module named {first!r}")


def named_function(name: str) -> Transformation:
    """The function that `package.module:function` names."""
    check_name(name)
    module_name, _, function_name = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise _not_found(name, str(error)) from error
        raise JobError(f"the module {module_name} cannot be imported: {raised_at(error)}", "mend it") from error
    try:
        for part in function_name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise JobError(f"the module {module_name} has no {function_name}", "check the name after the colon") from error
    if not callable(found):
        raise JobError(f"{name} is not a function", "name one that takes and returns a DataFrame")
    return found  # type: ignore[no-any-return]


def _not_found(name: str, why: str) -> JobError:
    return JobError(
        f"the module of {name} cannot be imported ({why})", "start where it can be, or set PYTHONPATH or --py-files"
    )


def transformed(messages: DataFrame, change: Transformation, json_schema: str | None = None) -> DataFrame:
    """The result of a transformation, with the columns that make bodies readable in front of it."""
    readable = messages.withColumn("text", F.col("body").cast("string"))
    if json_schema is not None:
        try:
            readable = readable.withColumn("json", F.from_json("text", json_schema))
        except (AnalysisException, ParseException) as error:
            raise JobError(
                f"the JSON schema cannot be used: {told(error)}", "write columns as in SQL: 'id string, amount int'"
            ) from error
    result = change(readable)
    if not isinstance(result, DataFrame):
        raise JobError(f"the function returned {type(result).__name__}", "return the DataFrame that is to be written")
    if not result.isStreaming:
        raise JobError(
            "the result does not come from the messages", "transform the DataFrame that the function is given"
        )
    return result


# Where it goes


def _to_topic(
    result: DataFrame, topic: str, name_server: str | None, messages: Messages, options: Mapping[str, str]
) -> DataStreamWriter:
    chosen = of_access(messages.source_options)
    if name_server is not None:
        chosen["nameServer"] = name_server
    chosen |= {"topic": topic, **options}
    source, target = source_options.parse(messages.source_options).access, sink_options.parse(chosen).access
    if topic in messages.topics and set(source.name_servers) & set(target.name_servers):
        raise JobError(f"{topic} would be written to itself, without an end", "choose another topic to write to")
    check_columns(result.schema, topic)
    return result.writeStream.format(FORMAT).options(**chosen)


def _to_files(
    result: DataFrame,
    output: str,
    table: str | None,
    checkpoint: str,
    format: str,
    partition_by: tuple[str, ...],
    mode: str,
    options: Mapping[str, str],
    run: Callable[[DataStreamWriter], None],
) -> None:
    if mode != "append":
        raise JobError(f"files cannot be written in {mode} mode", "use append, or a table format that can be updated")
    missing = [name for name in partition_by if name not in result.columns]
    if missing:
        raise JobError(f"the result has no column {missing[0]} to partition by", f"it has {', '.join(result.columns)}")
    publication = Publication(result.sparkSession, output)
    kind = TABLE._replace(partitions=partition_by)
    ownership = Ownership(result.sparkSession, publication, checkpoint, kind)
    ownership.check()

    def write(rows: DataFrame, number: int) -> None:
        batch = ownership.batch(number)
        publication.publish(rows, batch, partition_by=partition_by, format=format, options=options)

    with ownership.opened():
        if table is not None:
            register(result.sparkSession, table, output, result.schema, format, options, partition_by)
        run(result.writeStream.foreachBatch(write))
    if table is not None:
        look_again(result.sparkSession, table, partition_by)
