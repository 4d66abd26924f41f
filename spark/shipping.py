"""The data source for sessions to which CometMQ came as a zip, by `spark-submit --py-files`.

Installed, it is found by Spark and needs none of this. But Spark's discovery does not look into zips, and most of a
source's processes do not have them on their path. So the class, and what it makes, travel with the code that puts the
zip there. `register()` makes it known to a session; `pyspark_cometmq` does where it lies beside the zip.
"""

import copyreg
import io
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any, TypeVar
from zipimport import zipimporter

from pyspark import SparkFiles, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cometmq.spark import source
from cometmq.spark.source import RocketMQSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )

_T = TypeVar("_T")


def zip_of(loader: object) -> str | None:
    """The zip that a module was loaded from, if it was one."""
    return loader.archive if isinstance(loader, zipimporter) else None


def register(spark: SparkSession) -> None:
    """Make the source known to a session. Harmless where Spark has found it already."""
    archive = zip_of(getattr(source, "__loader__", None))
    spark.dataSource.register(RocketMQSource if archive is None else from_zip(archive))


def from_zip(archive: str) -> type[RocketMQSource]:
    """The source, for processes that do not have this zip on their path; on other machines it lies elsewhere."""
    for module in (source, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

    def put_on_path() -> None:
        # Streams have a directory of their own below that of the job's files.
        files = SparkFiles.getRootDirectory()
        for folder in (os.path.dirname(archive), files, os.path.dirname(files)):
            place = os.path.join(folder, os.path.basename(archive))
            if os.path.isfile(place):
                if place not in sys.path:
                    sys.path.append(place)
                return

    def unpacked(packed: bytes) -> Any:
        put_on_path()
        return pickle.loads(packed)

    def reduced(made: object) -> tuple[Any, ...]:
        packed = io.BytesIO()
        pickler = pickle.Pickler(packed)
        pickler.dispatch_table = {}  # without this way
        pickler.dump(made)
        return unpacked, (packed.getvalue(),)

    def travelling(made: _T) -> _T:
        copyreg.pickle(type(made), reduced)
        return made

    class FromZip(RocketMQSource):
        """The source whose readers and writers find their modules wherever they come."""

        def __init__(self, options: dict[str, str]) -> None:
            put_on_path()
            super().__init__(options)

        def __setstate__(self, state: dict[str, object]) -> None:
            put_on_path()
            self.__dict__.update(state)

        def reader(self, schema: StructType) -> "DataSourceReader":
            return travelling(super().reader(schema))

        def streamReader(self, schema: StructType) -> "DataSourceStreamReader":
            return travelling(super().streamReader(schema))

        def writer(self, schema: StructType, overwrite: bool) -> "DataSourceArrowWriter":
            return travelling(super().writer(schema, overwrite))

        def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":
            return travelling(super().streamWriter(schema, overwrite))

    return FromZip
