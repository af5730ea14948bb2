"""Sets the part of a plan in a training script that its command line cannot say. The script stays
as it is.

Each knob has its part, a module with its hooks.

=============  ==============================================================================
``dropout``    draws the masks of dropout on all threads
``padding``    cuts off columns that are padding in all samples of a batch (with
               ``trimming``, which finds them, ``padding_check``, which checks the model, and
               ``unchanged``, which restores it and its losses)
``order``      takes the samples of a step of similar length
``gradients``  sends less of the gradients between ranks (``gradient_traffic``)
``trainer``    sets the TrainingArguments of a script and divides their batch over the ranks
               (with ``scale``, which keeps the scale of its losses)
``loop``       the same for a loop over an Accelerator, and the loader that it trains on
``ranks``      keeps schedules, shuffles, groups of similar length, and the number of ranks that
               a script sees
``ending``     the ranks of a script that ended well leave together
``guard``      compares the ranks while they train, and stops those that differ (with
               ``figures``, the few numbers that are compared)
=============  ==============================================================================

``force`` is what a plan sets, ``parts`` says which parts it needs, ``shared`` is what parts for
objects of a script share. ``hooking`` sets the hooks and ``run_script`` runs the script. Trials
import the parts. ``cputune.emitters.assembled`` makes one ``apply_plan.py`` of those that a plan
needs. It needs only Python 3.9, and is made for transformers 4.38 to 5.x, accelerate 0.26 to 1.x
and torch 2.x.
"""
