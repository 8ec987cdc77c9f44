"""The planners, one closed loop for all of them, and the registry in which they are found."""
