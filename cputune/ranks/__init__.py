"""Ranks: start them, read what they say, hold it against the plan, end them.

Used by whatever runs a plan: trials (``runner``) and the launches that ``verify`` observes
(``launched``).

- ``commands``: the commands that start the ranks of a plan;
- ``supervisor``: our end of a process that starts ranks and ends them, even where we are
  killed; ``supervisor_main`` is that process (with ``rank_process``, ``tuner_watch``, ``ports``),
  ``process_here`` holds it on this machine, ``supervisors`` keeps some of them;
- ``place``: where ranks run, this machine or (``there``) another host, at the end of a line to it;
  ``opened`` reaches the hosts of a study and looks them over, ``hosts`` holds them;
- ``listen``: the socket on which the ranks speak;
- ``job``: one launch from start to end, with ``gather`` (steps of ranks to steps of the job),
  ``idle`` (does it still compute, or does it hang) and ``failure`` (why it ended);
- ``compare``: what the ranks show, held against the plan;
- ``work_folder``: temporary files that are gone with the run.
"""
