"""Ranks: start them, read their reports, compare them with the plan, end them.

- ``engines``: what starts the ranks of a plan: this machine, or the emitted launch over hosts;
  ``hosts`` are those of a study, checked before the first trial;
- ``supervisor``: our end of a process that starts and ends ranks (``supervisor_main``), even
  if we are killed, and temporary files that are removed with the run;
- ``listen``: the socket for the reports of ranks;
- ``job``: one launch from start to end, and ``failure``: why it ended;
- ``compare``: the reports of ranks, compared with the plan and the workload;
- ``foreground``: a job that has the terminal, as ``cputune run`` starts it;
- ``typed``: the same for a command as it was typed.
"""
