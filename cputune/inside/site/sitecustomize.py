"""First on PYTHONPATH, this makes every Python process below report its training.

The sitecustomize that this one hides is loaded after it.
"""

import contextlib
import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
if os.environ.get("CPUTUNE_TRIAL_SOCKET"):
    _root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    if _root not in sys.path:
        sys.path.append(_root)
    if os.environ.get("CPUTUNE_TRIAL_REHEARSE"):
        from cputune.inside.rehearsing import install as rehearse

        rehearse()
    else:
        from cputune.inside.hooks import install, tell_what_is_raised

        tell_what_is_raised(install())
_ours = sys.modules.pop(__name__)
with contextlib.suppress(ImportError):
    importlib.import_module("sitecustomize")
sys.modules.setdefault(__name__, _ours)  # an import of sitecustomize looks here
