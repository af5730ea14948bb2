"""Scripts that run on other hosts: the standard library and Python 3.7, nothing of ours.

Each is sent over the standard input of a Python there (``cputune.host.remote.ask``), finds its
question as JSON in ``sys.argv[1]``, and prints its answer as one line of JSON.
"""
