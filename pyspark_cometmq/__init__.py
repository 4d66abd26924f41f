"""Where Spark's discovery finds the data source `rocketmq`: it imports every top-level module called `pyspark_*`.

One such module that cannot be imported disables them all, so only pyspark is needed to load this one.

Installed, it is a package beside `cometmq`. For `--py-files cometmq-pyfiles.zip,pyspark_cometmq.py` it is a file beside
the zip: Spark looks for sources among the modules in the directory of a job's files, and not in zips there.
"""

import sys
from importlib.util import find_spec

__all__ = ["DefaultSource"]


def _zip_beside() -> str | None:
    from pathlib import Path
    from zipimport import ZipImportError, zipimporter

    here = Path(__file__).parent
    for file in sorted(map(str, here.glob("*.zip"))):
        try:
            if zipimporter(file).find_spec("cometmq") is not None:
                return file
        except ZipImportError:
            continue
    print(f"pyspark_cometmq: there is no zip of CometMQ in {here}: name it in --py-files, too", file=sys.stderr)
    return None


if find_spec("cometmq") is not None:
    from cometmq.spark.source import RocketMQSource as DefaultSource
elif (_zip := _zip_beside()) is not None:
    sys.path.append(_zip)
    from cometmq.spark.shipping import from_zip

    DefaultSource = from_zip(_zip)  # type: ignore[misc]
