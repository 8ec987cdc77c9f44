"""The HTML report of a plan's document, the view in a notebook, and the plot.

`render` puts data, style and script into one HTML file. The data is JSON in a script element that
browsers do not execute. The script draws text only through text nodes, so names in a plan are shown
and never interpreted.
"""

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kiwi.json_file import write_text

_OF_A_PLAN = (
    *("base.js", "memory.js", "shardings.js", "tables.js", "curves.js", "planning.js"),
    "page.js",
)
_OF_TWO_PLANS = ("base.js", "compare.js")


def render(data: Mapping[str, Any]) -> str:
    """Returns the report as HTML. `data` comes from `kiwi.plans.report_data`."""
    return _page(f"Kiwi: {data['title']}", data, _OF_A_PLAN)


def render_comparison(data: Mapping[str, Any]) -> str:
    """Returns the page that compares two plans as HTML. `data` comes from
    `kiwi.plans.comparison`."""
    return _page("Kiwi: two plans", data, _OF_TWO_PLANS)


def _page(title: str, data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    # "</script>" in a string would end the element. JSON reads \\u003c as "<".
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    page = _asset("page.html")
    for mark, content in (
        ("{{title}}", html.escape(title)),
        ("{{style}}", _asset("style.css")),
        ("{{script}}", "\n".join(_asset(name) for name in scripts)),
        ("{{data}}", text),
    ):
        page = page.replace(mark, content, 1)
    return page


def write_page(path: str | Path, page: str) -> None:
    """Writes the HTML text `page` to a file.

    **Raises:** `InvalidArgumentError` if the file cannot be written.
    """
    write_text(page, path)


def write_report(path: str | Path, data: Mapping[str, Any]) -> None:
    """Writes the report of `data`, which is as for `render`, to a file.

    **Raises:** `InvalidArgumentError` if the file cannot be written.
    """
    write_page(path, render(data))


def _asset(name: str) -> str:
    return (resources.files("kiwi.report") / "assets" / name).read_text(encoding="utf-8")
