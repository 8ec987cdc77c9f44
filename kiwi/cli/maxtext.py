"""`kiwi maxtext`: finds a better recipe for a MaxText configuration and writes it as a file of
overrides."""

import argparse
import logging
from typing import Any

from kiwi.cli.output import Output
from kiwi.errors import InvalidArgumentError
from kiwi.loading import use_attached_devices, use_cpu_devices
from kiwi.mesh.shipped import find_table
from kiwi.mesh.topology import Topology
from kiwi.messages import topics

_PRICED = ("memory_budget", "host_memory_budget", "effort", "verify")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "config", metavar="CONFIG.yml", help="a configuration, or one that comes with MaxText"
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as MaxText takes them")
    parser.add_argument("--profile", default="v5e", help="hardware, see `kiwi hardware` (v5e)")
    parser.add_argument("--topology", help="chips of a slice, e.g. 16x16 (default: the devices)")
    parser.add_argument("--num-slices", type=int, default=1, help="slices (1)")
    parser.add_argument(
        "--budget",
        dest="memory_budget",
        help="memory per device, e.g. 14GiB, or `recipe` for what the configuration takes "
        "(default: the device's)",
    )
    parser.add_argument(
        "--host-budget",
        dest="host_memory_budget",
        help="host memory for offloaded values, e.g. 64GiB (default: nothing is offloaded)",
    )
    parser.add_argument(
        "--effort", default="quick", help="quick, normal or thorough: policies priced (quick)"
    )
    parser.add_argument("--verify", default="none", help="who compiles the answer, or none (none)")
    parser.add_argument("--out", metavar="OVERRIDES.yml", help="save the configuration")


def maxtext(arguments: argparse.Namespace, output: Output) -> bool:
    """Prices the configuration, searches for faster residencies, and compares both recipes. Always
    returns True."""
    from absl import logging as absl_logging

    from kiwi.frameworks.maxtext import MaxText
    from kiwi.recipes import best, compare, price

    settings = dict(map(_setting, arguments.settings))
    if arguments.topology is None:
        use_attached_devices()
    else:
        # With as many devices as the mesh has, XLA propagates shardings in this process.
        use_cpu_devices(_device_count(arguments))
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger("maxtext").setLevel(logging.ERROR)
    configuration = MaxText(
        arguments.config, settings, arguments.profile, arguments.topology, arguments.num_slices
    )
    options = {name: getattr(arguments, name) for name in _PRICED}
    options["verify"] = None if options["verify"] == "none" else options["verify"]
    asked = options.pop("memory_budget")
    with output.progress() as show:
        show(description="pricing the configuration")
        budget = {} if asked in (None, "recipe") else {"memory_budget": asked}
        given_recipe = price(configuration, configuration.recipe, **budget)
        if asked == "recipe":
            budget = {"memory_budget": given_recipe.peak_bytes}
        show(description="pricing other residencies")
        best_recipe = best(configuration, configuration.recipe, **options, **budget)
        show(description="comparing")
        comparison = compare(best_recipe, given_recipe)
    write: Any = lambda path: configuration.write_overrides(best_recipe.named, path)  # noqa: E731
    output.written("Configuration saved to", arguments.out, write)
    output.result(_data(comparison), str(comparison))
    return True


def _device_count(arguments: argparse.Namespace) -> int:
    """Returns the number of devices of the slices that the arguments name."""
    wiring = find_table(arguments.profile).hardware.interconnect
    topology = Topology.parse(arguments.topology, arguments.num_slices)
    return 1 if wiring is None else topology.device_count(wiring)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgumentError(
            f"{text!r} is no setting.", topic=topics.RECIPE, suggestion="For example key=value."
        )
    return name, value


def _data(comparison: Any) -> dict[str, Any]:
    return {
        "recipe": _priced(comparison.recipe),
        "own": _priced(comparison.own),
        "differences": [
            {
                "name": difference.change.name,
                "was": difference.change.was,
                "now": difference.change.now,
                "ratio": difference.ratio,
                "peak_bytes": difference.peak_bytes,
                "fits": difference.priced.fits,
            }
            for difference in comparison.differences
        ],
    }


def _priced(priced: Any) -> dict[str, Any]:
    recipe = priced.named
    compiled = priced.plan.compiled
    return {
        "seconds": priced.seconds,
        "peak_bytes": priced.peak_bytes,
        "fits": priced.fits,
        "compiled_seconds": compiled and compiled.step_seconds,
        "compiled_peak_bytes": compiled and compiled.peak_bytes,
        "residencies": dict(recipe.residencies or {}),
        "mesh": dict(recipe.mesh),
        "batch_size": recipe.batch_size,
    }
