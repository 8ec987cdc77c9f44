"""Recording of profile tables, on the attached devices or from the times that a compiler states."""
