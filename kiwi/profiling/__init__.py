"""Recording of profile tables on the attached devices."""
