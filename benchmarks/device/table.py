"""Records a profile table of the attached card, for the operators of the benchmark's models.

    python -m benchmarks.device.table --out=h100.json --models=gpt,convnet

Entries that are in the file are not measured again.
"""

from absl import app, flags

import kiwi
from benchmarks.device.models import MODELS, ONE
from kiwi.errors import KiwiError

_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_OUT = flags.DEFINE_string("out", "table.json", "The table.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 9, "Timings of each program.")


def main(_: list[str]) -> None:
    """Records the models one after the other."""
    for name in _NAMES.value:
        case = MODELS[name]
        try:
            table = kiwi.record_profile(
                case.train_step(),
                *case.arguments,
                mesh_shape=ONE,
                path=_OUT.value,
                repetitions=_REPETITIONS.value,
            )
            print(f"{name}: {len(table.operators)} operators", *table.skipped, flush=True)
        except KiwiError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    app.run(main)
