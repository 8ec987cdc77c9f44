"""The arguments of the `kiwi` command, and its report of errors.

Exit codes:

- 0: done.
- 1: done, and the answer is no: `diff` found differences, or the peak in `verify` or `plan` is over
  the budget.
- 2: wrong usage.
- 3: no plan fits the budget.
- 4: any other error that Kiwi explains.
- 70: a bug.
- 130: interrupted.
"""

import argparse
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from kiwi.cli import commands
from kiwi.cli.maxtext import add_arguments as _add_maxtext
from kiwi.cli.maxtext import maxtext
from kiwi.cli.output import Output
from kiwi.configurations.search import DEFAULT_EFFORT, OBJECTIVES
from kiwi.deviation.measured import QUANTITIES
from kiwi.deviation.reduction import MOST_TESTS
from kiwi.errors import InfeasibleError, KiwiError
from kiwi.json_file import check_writable
from kiwi.loading import faults_explained
from kiwi.options import Options, flags, integers_of_text, mesh_of_text
from kiwi.planners.registry import described
from kiwi.plans.explain import SEARCH
from kiwi.system import limit_error
from kiwi.version import VERSION

DONE, NO, USAGE, INFEASIBLE, FAILED, BUG, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130


WRITTEN = ("out", "report", "table")
"""The options that name files to write. If a file cannot be written, planning does not begin."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. `arguments`: the command's arguments, by default
    from the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    parsed = _parser().parse_args(_joined(given))
    output = Output(json=parsed.json)
    try:
        for name in WRITTEN:
            if getattr(parsed, name, None) is not None:
                check_writable(getattr(parsed, name))
        with faults_explained():
            is_done = parsed.run(parsed, output)
            sys.stdout.flush()
            return DONE if is_done else NO
    except KeyboardInterrupt:
        output.error("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # The reader, such as `head`, has what it wanted.
        return DONE
    except Exception as error:
        if parsed.debug:
            traceback.print_exc()
        return _failed(error, output)


def _failed(error: Exception, output: Output) -> int:
    """Prints a line about an error, and returns the exit code."""
    if isinstance(error, OSError):
        _drop_output()  # If standard output cannot be written, flushing it at exit fails as well.
    known = error if isinstance(error, KiwiError) else limit_error(error)
    if known is None:
        output.error(f"{type(error).__name__}: {error} (--debug shows where)")
        return BUG
    output.error(_one_line(known))
    return INFEASIBLE if isinstance(known, InfeasibleError) else FAILED


def _drop_output() -> None:
    """Leads standard output to nowhere, so that nothing is left to flush at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _joined(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments, with each value that begins with a minus and a digit joined to its
    option, as in `--budget=-1GiB`. argparse takes such a value for the name of an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.match(r"-[\d.]", argument) and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _one_line(error: KiwiError) -> str:
    parts = [error.what, error.cause, f"Try: {error.suggestion}" if error.suggestion else ""]
    text = " ".join(" ".join(part.split()) for part in parts if part)
    return f"{error.code}: {text}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kiwi",
        description="Plans sharding and recomputation of a JAX training step together.",
        epilog="Exit codes: 0 done, 1 differences or over the budget, 2 usage, 3 no plan fits, "
        "4 other errors, 70 a fault of Kiwi, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"kiwi {VERSION}")
    group = parser.add_subparsers(required=True, metavar="COMMAND")
    for run, text, add in (
        (commands.plan, "plan a function of a file", _add_plan),
        (commands.explain, "show a plan, its search, or one operator", _add_explain),
        (commands.deviation, "show where estimate and compiled program differ", _add_deviation),
        (commands.diff, "compare two plans", _add_diff),
        (commands.sweep, "plan for several meshes and budgets", _add_sweep),
        (commands.search, "find the best mesh, batch, microbatches and stages", _add_search),
        (maxtext, "find a better recipe for a MaxText configuration", _add_maxtext),
        (commands.verify, "compile a saved plan and check it", _add_verify),
        (commands.hardware, "list the hardware catalogue", _add_hardware),
        (commands.cluster, "find the mesh whose axes have uniform links", _add_cluster),
        (commands.profile, "measure what planning a function needs to know", _add_profile),
    ):
        command = group.add_parser(run.__name__, help=text)
        add(command)
        command.add_argument("--json", action="store_true", help="print JSON for machines")
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.set_defaults(run=run)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    _add_options(parser)
    _add_constraints(parser)
    parser.add_argument("--out", metavar="PLAN.json", help="save the plan")
    parser.add_argument("--report", metavar="PLAN.html", help="write the report")


def _add_deviation(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    _add_options(parser)
    _add_constraints(parser)
    parser.add_argument(
        "--reduce", action="store_true", help="find the smallest part that deviates as the whole"
    )
    parser.add_argument(
        "--of", choices=QUANTITIES, help="what the part deviates in (what deviates most)"
    )
    parser.add_argument(
        "--most-tests",
        metavar="N",
        type=int,
        default=MOST_TESTS,
        help=f"parts to compile at most ({MOST_TESTS})",
    )
    parser.add_argument("--out", metavar="FILE.py", help="save the part as a file")


def _add_function(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument(
        "--args",
        metavar="NAME",
        default="make_args",
        help="function of the file, without parameters, that returns the arguments (make_args)",
    )


def _add_options(
    parser: argparse.ArgumentParser,
    *,
    verify: str = "auto",
    effort: str | None = None,
    several_of: Sequence[str] = (),
    **several: Any,
) -> None:
    """Adds the options of `kiwi.plan`. For an option that is not given, the function's own option
    counts.

    - `verify`: the default of `--verify`.
    - `effort`: the effort of a command that does not take the function's own.
    - `several_of`: the options that can be given several times, with the argparse settings
      `several`.
    """
    own_defaults = {"verify": verify, "effort": effort or Options.effort}
    for option, flag in flags():
        default = own_defaults.get(option.name, option.default)
        text = None if flag.help is None else flag.help.format(default=default)
        parser.add_argument(
            flag.name,
            dest=option.name,
            type=flag.parse,
            metavar=flag.metavar or flag.name.removeprefix("--").replace("-", "_").upper(),
            default=verify if option.name == "verify" else argparse.SUPPRESS,
            help=f"{text} {described()}" if option.name == "planner" else text,
            **(several if option.name in several_of else {}),
        )


def _add_constraints(parser: argparse.ArgumentParser) -> None:
    for flag, metavar, text in (
        (
            "--pin",
            "PATTERN=SHARDING",
            "how arguments lie, e.g. 'params/**=x,-'; entries are mesh axes joined by +, - for "
            "none, ? for open",
        ),
        (
            "--forbid-replicated",
            "PATTERN",
            "arguments of which every device holds a part only, e.g. 'params/**'",
        ),
        (
            "--on-host",
            "PATTERN",
            "arguments in host memory, e.g. 'state/opt_state/**'; with --verify none",
        ),
    ):
        parser.add_argument(flag, metavar=metavar, action="append", default=[], help=text)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN.json", help="or the code of a message: KIWI-M001")
    parser.add_argument(
        "subject", nargs="?", choices=[SEARCH], help="search: the attempts that led to the plan"
    )
    parser.add_argument("--op", metavar="NAME", help="index, opcode, name scope or file.py:line")
    parser.add_argument(
        "--function",
        metavar="FILE.py:FUNCTION",
        help="the planned function: alternatives are then forced and everything solved again",
    )
    parser.add_argument("--args", metavar="NAME", default="make_args")
    parser.add_argument("--forced", type=int, default=3, help="how many alternatives to force (3)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", default=100.0)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A.json")
    parser.add_argument("second", metavar="B.json")
    parser.add_argument("--report", metavar="DIFF.html", help="write a page of both plans")


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    _add_options(
        parser,
        verify="none",
        effort=DEFAULT_EFFORT,
        several_of=("mesh_shape", "memory_budget"),
        action="append",
        required=True,
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--out", metavar="SWEEP.json", help="save the table")
    parser.add_argument("--report", metavar="SWEEP.html", help="report of the fastest plan")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="FILE.py:MAKE_STEP")
    _add_options(parser, effort=DEFAULT_EFFORT, several_of=("mesh_shape",), action="append")
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
    return integers_of_text(text, f"{text!r} are no numbers; for example 8,16")


def _price(text: str) -> tuple[str, Any]:
    name, _, price = text.rpartition("=")
    try:
        return name, float(price)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no price; for example v5e=1.2") from None


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN.json")
    _add_function(parser)
    parser.add_argument("--target", default="auto", help="what to compile for (auto)")


def _add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one entry, with its sources")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="CLUSTER.json", help="default: measure now")
    parser.add_argument(
        "--mesh", type=mesh_of_text, help="assign to this mesh, e.g. 2,4 (the best)"
    )
    parser.add_argument("--out", metavar="CLUSTER.json", help="save the measurements")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    parser.add_argument(
        "--mesh", type=mesh_of_text, required=True, help="attached devices, e.g. 2,4"
    )
    parser.add_argument(
        "--compiler",
        metavar="NAME",
        help="no devices: what the compiler of this TPU or GPU states, e.g. v5e or h100-sxm",
    )
    parser.add_argument(
        "--out", metavar="TABLE.json", required=True, help="the table; resumed where it exists"
    )
    parser.add_argument("--repetitions", type=int, default=9, help="timings of each program (9)")
    parser.add_argument(
        "--cpu-devices", type=int, metavar="N", help="measure N virtual CPU devices"
    )


if __name__ == "__main__":
    sys.exit(main())
