"""``make mutants``: faults are planted in the modules that decide; do their tests notice?"""
