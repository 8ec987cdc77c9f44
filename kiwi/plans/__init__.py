"""The plan as data: estimate, decisions, files, reports. This package imports no planner."""
