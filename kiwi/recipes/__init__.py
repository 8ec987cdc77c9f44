"""Training recipes as data: the price of a step under a recipe, and the comparison of two recipes.

step = Step(train_step, (state, batch), {"profile": "v5e", "donate_argnums": 0})
theirs = price(step, Recipe(mesh={"fsdp": 16}, residencies={"query_proj": "offload"}))
own = best(step, theirs.recipe, memory_budget="14GiB")
print(compare(own, theirs))
"""

from kiwi.recipes.comparison import Comparison as Comparison
from kiwi.recipes.comparison import compare as compare
from kiwi.recipes.pricing import Priced as Priced
from kiwi.recipes.pricing import Step as Step
from kiwi.recipes.pricing import best as best
from kiwi.recipes.pricing import price as price
from kiwi.recipes.recipe import Change as Change
from kiwi.recipes.recipe import Recipe as Recipe
