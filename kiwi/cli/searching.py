"""`kiwi search`."""

import argparse
import functools
import json
from collections.abc import Sequence
from typing import Any

from kiwi.cli.output import Output, Show
from kiwi.configurations.configuration import Configuration, Outcome
from kiwi.configurations.search import OBJECTIVES
from kiwi.configurations.search import search as run_search
from kiwi.loading import use_cpu_devices
from kiwi.options import split


def search(arguments: argparse.Namespace, output: Output) -> bool:
    """Searches and prints the table; saves the best plan."""
    options, _ = split(vars(arguments))
    meshes = options.pop("mesh_shape", None)
    profiles = options.pop("profile", "h100-sxm").split(",")
    use_cpu_devices(max(arguments.devices))
    with output.progress() as show:
        show(description=f"searching in {arguments.jobs} processes")
        found = run_search(
            arguments.function,
            devices=arguments.devices,
            meshes=meshes,
            most_axes=arguments.most_axes,
            profiles=profiles,
            batch_sizes=arguments.batch_sizes,
            microbatches=arguments.microbatches,
            stages=arguments.stages,
            objective=arguments.objective,
            prices=dict(arguments.price),
            plans_all=arguments.plans_all,
            jobs=arguments.jobs,
            resume=arguments.resume,
            on_found=functools.partial(_report, show),
            **options,
        )
    output.result(found.json(), str(found))
    output.note(f"Best: {found.best_row.configuration}; {found.seconds:.0f} s")
    if arguments.table:
        with open(arguments.table, "w", encoding="utf-8") as file:
            json.dump(found.json(), file, indent=1)
    if arguments.out:
        found.best.save(arguments.out)
        output.note(f"Plan saved to {arguments.out}")
    if arguments.report:
        found.write_report(arguments.report)
        output.note(f"Report written to {arguments.report}")
    return True


def _report(show: Show, configuration: Configuration, outcome: Outcome) -> None:
    show(description=f"{outcome.stage.value} of {configuration}")


def add_search(parser: argparse.ArgumentParser) -> None:
    """The arguments beside those of `kiwi.jit`."""
    parser.add_argument("--devices", type=_numbers, required=True, help="how many, e.g. 8 or 8,32")
    parser.add_argument("--most-axes", type=int, default=3, help="of a mesh: 1, 2 or 3 (3)")
    for flag, name, text in (
        ("--batch", "batch_sizes", "samples of a step on all devices, e.g. 64,128"),
        ("--microbatches", "microbatches", "parts that they are cut into, e.g. 1,2,4"),
        ("--stages", "stages", "of a pipeline, e.g. 1,2"),
    ):
        parser.add_argument(flag, dest=name, metavar="NUMBERS", type=_numbers, help=text)
    parser.add_argument("--objective", choices=OBJECTIVES, default=OBJECTIVES[0])
    parser.add_argument(
        "--price",
        metavar="PROFILE=PRICE",
        type=_price,
        action="append",
        default=[],
        help="of a device's hour, e.g. h100-sxm=2.5",
    )
    parser.add_argument("--plans-all", action="store_true", help="leave none out by its bound")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--resume", metavar="FOLDER", help="keeps what was found, and goes on")
    parser.add_argument("--out", metavar="PLAN.json", help="save the best plan")
    parser.add_argument("--table", metavar="SEARCH.json", help="save the table")
    parser.add_argument("--report", metavar="SEARCH.html", help="report of the best plan")


def _numbers(text: str) -> Sequence[int]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers; for example 8,16") from None


def _price(text: str) -> tuple[str, Any]:
    name, _, price = text.rpartition("=")
    try:
        return name, float(price)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no price; for example v5e=1.2") from None
