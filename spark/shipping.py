"""`register()`: the data source for sessions to which CometMQ came as a zip, by `spark-submit --py-files`.

Installed, it is found by Spark and needs none of this. But Spark's discovery does not look into zips, and the process
that plans a stream does not even have them on its path. So the class travels with its code, and puts the zip there.
"""

import sys
from zipimport import zipimporter

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from cometmq.spark import source
from cometmq.spark.source import RocketMQSource


def zip_of(loader: object) -> str | None:
    """The zip that a module was loaded from, if it was one."""
    return loader.archive if isinstance(loader, zipimporter) else None


def register(spark: SparkSession) -> None:
    """Make the source known to a session. Harmless where Spark has found it already."""
    archive = zip_of(getattr(source, "__loader__", None))
    if archive is None:
        spark.dataSource.register(RocketMQSource)
        return
    here = sys.modules[__name__]
    for module in (source, here):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spark.dataSource.register(_from_zip(archive))
    finally:
        for module in (source, here):
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _from_zip(archive: str) -> type[RocketMQSource]:
    class FromZip(RocketMQSource):
        """The source, for processes of the driver that do not have the zip on their path."""

        def __setstate__(self, state: dict[str, object]) -> None:
            """Spark hands over an object that it has made elsewhere, and then asks it for a reader."""
            if archive not in sys.path:
                sys.path.append(archive)
            self.__dict__.update(state)

    return FromZip
