"""The library as people type it: ``tune`` of a command, ``doctor`` of this machine."""
