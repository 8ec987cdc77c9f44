"""Four layers of GPT-3 13B, for the `kiwi` command.

kiwi plan examples/gpt_13b_4l.py:train_step --mesh 2,4 --budget 9GiB --donate 0 --out plan.json
kiwi search examples/gpt_13b_4l.py:make_step --devices 8 --batch 16,32,64 --donate 0
"""

from dataclasses import replace
from typing import Any

from examples import gpt

CONFIG = gpt.SIZES["gpt-13b-4l"]

train_step = gpt.make_train_step(CONFIG)


def make_args() -> tuple[Any, ...]:
    """Returns the state and the batch, as shapes."""
    return gpt.abstract_state(CONFIG), gpt.abstract_batch(CONFIG)


def make_step(batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step and its arguments as shapes, for `kiwi.search`."""
    return _step(replace(CONFIG, batch=batch_size))


def make_whole_step(batch_size: int) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step and its arguments with all 40 layers, which are not scanned."""
    return _step(replace(CONFIG, batch=batch_size, layers=40))


def _step(config: gpt.GptConfig) -> tuple[Any, tuple[Any, ...]]:
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    return gpt.make_train_step(config), (state, batch)
