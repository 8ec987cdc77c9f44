"""A plan as hand-written code would say it: partition specs, logical rules, checkpoint policies."""
