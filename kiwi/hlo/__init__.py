"""Groups the equations of a JAX function into units: tracing, lowering, sharding rules, fusion."""
