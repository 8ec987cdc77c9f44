"""The search for the best configuration of a training step: mesh, batch, microbatches, stages,
devices."""
