"""Ranks: start them, read what they say, hold it against the plan, end them.

Used by whatever runs a plan: trials (``runner``) and the launches that ``verify`` observes
(``job.observe``).

- ``engines``: what starts the ranks of a plan: this machine, or over hosts the emitted launch as
  the cluster does it; ``hosts`` are those of a study, looked over before the first trial;
- ``supervisor``: our end of a process that starts ranks and ends them, even where we are
  killed, and temporary files that are gone with the run; ``supervisor_main`` is that process;
- ``listen``: the socket on which the ranks speak;
- ``job``: one launch from start to end, and ``failure``: why it ended;
- ``compare``: what the ranks show, held against the plan and the workload;
- ``foreground``: a job that has the terminal, as ``cputune run`` starts it.
- ``typed``: the same of a command as it was typed.
"""
