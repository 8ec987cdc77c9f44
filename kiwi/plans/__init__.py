"""The plan as data: estimate, decisions, files, reports. No planner is known here."""
