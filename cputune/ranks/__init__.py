"""How a plan becomes processes: environment, launch, keepers, and what their ranks tell.

- ``environment``: variables of the ranks, and which of the outer ones must go;
- ``launch``: the commands and messages that start the ranks of a plan;
- ``keeper``: our end of ``cputune.ranks.keeper_main``, the process that watches over ranks;
- ``gather``: steps of ranks to steps of the job;
- ``idle``: does a job still compute, or does it hang;
- ``judge``: effective state against the plan, and the reasons of failures;
- ``trial``: one plan from start to end.
"""
