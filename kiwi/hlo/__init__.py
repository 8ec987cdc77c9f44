"""From a JAX function to planning units: tracing, lowering, sharding rules, fusion, grouping."""
