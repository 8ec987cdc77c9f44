"""The training step of one GPT block, whose recording on a CPU is shipped with Kiwi.

kiwi profile benchmarks/replay/gpt_block.py:step --mesh 2,4 --cpu-devices 8 --out TABLE.json
"""

from typing import Any

from examples import gpt

CONFIG = gpt.GptConfig(layers=1, width=128, heads=8, batch=8, sequence=64)

step = gpt.make_train_step(CONFIG)


def make_args() -> tuple[Any, Any]:
    """Returns the shapes of state and batch."""
    return gpt.abstract_state(CONFIG), gpt.abstract_batch(CONFIG)
