"""Which configuration of a training step is best: mesh, batch, microbatches, stages, devices."""
