"""The process that measures one row; see `benchmarks.field`."""

import json
import sys
from typing import Any

import jax

from benchmarks.field.rows import Key


def main(key: Key, budget_bytes: int | None) -> dict[str, Any]:
    """Returns the row of a plan, or of compared numbers."""
    jax.config.update("jax_num_cpu_devices", 8)
    from benchmarks.field.numbers import compared
    from benchmarks.field.planned import planned
    from benchmarks.field.programs import PROGRAMS

    with PROGRAMS[key.program].context():
        if key.is_numbers:
            return compared(key.program, key.share)
        return planned(key.program, key.profile, budget_bytes)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(main(Key.parse(request["key"]), request["budget_bytes"])))
