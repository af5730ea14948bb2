"""Sets in a training script what of a plan its command line cannot say. The script stays as it is.

Each lever is a part, a module that is read by itself: what it hooks, and what it sets there.

=============  ==============================================================================
``dropout``    draws the masks of dropout on all threads
``padding``    cuts off columns of a batch that are padding in all of its samples (with
               ``batches``, which sees them, ``sameness``, which asks the model, and
               ``unchanged``, which leaves it and its losses as they were)
``order``      takes the samples of a step of like length
``gradients``  sends less of the gradients between ranks
``trainer``    sets the TrainingArguments of a script and divides their batch over the ranks
               (with ``scale``, which keeps the scale of its losses)
``loop``       the same for a loop over an Accelerator, and the loader that it trains on
``ranks``      keeps schedules, shuffles, groups of like length, and what a script is told of
               the number of ranks
``ending``     the ranks of a script that ended well leave together
``guard``      compares the ranks while they train, and stops those that are apart (with
               ``figures``, the few numbers that are compared)
=============  ==============================================================================

``force`` is what a plan sets, ``parts`` says which parts it needs, ``setting`` is what those share
that set objects of a script. ``hooking`` sets the hooks and ``running`` runs the script. Trials
import the parts; of those that a plan needs ``cputune.emitters.assembled`` makes one ``carry.py``.

All of it needs Python 3.9 and nothing else, and is made for transformers 4.38 to 5.x, accelerate
0.26 to 1.x and torch 2.x.
"""
