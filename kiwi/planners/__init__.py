"""The planners, and the registry in which they are found."""
