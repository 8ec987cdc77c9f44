"""The planners of the literature that `kiwi.plan(planner=name)` finds; see
`kiwi.planners.registry`."""

from kiwi.literature.planners.one_device import ONE_DEVICE_PLANNERS
from kiwi.literature.planners.paper_models import PAPER_MODELS
from kiwi.literature.planners.two_pass import TWO_PASS
from kiwi.literature.planners.two_stage import TWO_STAGE
from kiwi.planners.planner import Planner

PLANNERS: tuple[Planner, ...] = (TWO_PASS, TWO_STAGE, *PAPER_MODELS, *ONE_DEVICE_PLANNERS)
