"""Ranks: start them, read what they say, hold it against the plan, end them.

Used by whatever runs a plan: trials (``runner``) and the launches that ``verify`` observes
(``launched``).

- ``commands``: the commands that start the ranks of a plan on this machine;
- ``engines``: the emitted launch of a plan, started over hosts as the cluster does it; ``hosts``
  are those of a study, looked over before the first trial;
- ``supervisor``: our end of a process that starts ranks and ends them, even where we are
  killed; ``supervisor_main`` is that process;
- ``listen``: the socket on which the ranks speak;
- ``job``: one launch from start to end, and ``failure``: why it ended;
- ``compare``: what the ranks show, held against the plan and the workload;
- ``work_folder``: temporary files that are gone with the run.
"""
