"""The library functions ``cputune.tune`` and ``cputune.doctor``."""
