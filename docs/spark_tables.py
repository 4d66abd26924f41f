"""Writes the tables of docs/guide/spark.md from the declarations of the code, so that the two cannot drift apart.

python docs/spark_tables.py            writes the page
python docs/spark_tables.py --check    exits 1 when the page is not what would be written
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from cometmq.spark.access_options import ACCESS
from cometmq.spark.option_texts import Option
from cometmq.spark.options import SOURCE
from cometmq.spark.sink_columns import COLUMNS
from cometmq.spark.sink_options import SINK

PAGE = Path(__file__).parent / "guide" / "spark.md"

_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.S)


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _options(options: Iterable[Option]) -> str:
    lines = ["| option | what it says | default |", "|---|---|---|"]
    for option in options:
        only = f" ({option.only} only)" if option.only else ""
        lines.append(f"| `{option.name}` | {_cell(option.meaning)}{only} | {_cell(option.default)} |")
    return "\n".join(lines)


def _columns() -> str:
    lines = ["| column | type | what it is |", "|---|---|---|"]
    lines += [f"| `{name}` | `{column.may_be}` | {_cell(column.meaning)} |" for name, column in COLUMNS.items()]
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """The tables by the names that the page has for them."""
    return {
        "columns of the sink": _columns(),
        "options of access": _options(ACCESS.values()),
        "options of the source": _options(option for name, option in SOURCE.items() if name not in ACCESS),
        "options of the sink": _options(option for name, option in SINK.items() if name not in ACCESS),
    }


def written(page: str) -> str:
    """The page with the tables as they should be."""
    known = tables()
    return _TABLE.sub(lambda found: f"{found[1]}\n{known[found[2]]}\n\n{found[3]}", page)


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = written(page)
    if "--check" in sys.argv[1:]:
        if fresh != page:
            print(f"{PAGE.name} is not what the code says: run scripts/docs", file=sys.stderr)
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
