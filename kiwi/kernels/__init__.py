"""What the compiler will run for each unit of a step: facts that problem and emission read."""
