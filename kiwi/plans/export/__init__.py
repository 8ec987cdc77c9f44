"""A plan in the terms of hand-written code: partition specs, logical rules, checkpoint policies."""
