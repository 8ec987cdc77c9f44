"""What a layer of a scan costs, however many layers it runs over."""
