"""Scripts that run on other hosts. They need only Python 3.7 and its standard library.

Each is sent over the standard input of a Python there (``cputune.host.remote.ask``), reads its
question as JSON from ``sys.argv[1]``, and prints its answer as one line of JSON.
"""
