"""The cost of one layer of a scan, for scans over different numbers of layers."""
