"""``light.py`` with a model that says that its ranks train the same: ``answering.py SECONDS``.

Without an answer a script keeps the number of its ranks. It is light, as it loads no torch (the
text says ``environ``).
"""

import os
import runpy
from pathlib import Path

from cputune.inside import ASK_VARIABLE
from cputune.inside.messages import Speaker

asks = [question for question in os.environ.get(ASK_VARIABLE, "").split(",") if question]
await_turn = Speaker.await_turn


def answer_first(speaker):
    """After the first step, answer all that was asked."""
    for question in asks:
        if question == "starts":
            told = {"point": "", "digests": ["1"]}
        else:
            same = {"loss": [1.0, 1.0], "gradient": [1.0, 1.0], "apart": 0.0}
            told = {"point": "after 1 update", **same}
        speaker.say({"event": "answer", "question": question, **told})
    if asks and "starts" not in asks:
        speaker.say({"event": "answer", "question": "", "point": "", "updates": 1, "drawn": False})
    asks.clear()
    await_turn(speaker)


Speaker.await_turn = answer_first
runpy.run_path(str(Path(__file__).parents[1] / "faults" / "light.py"), run_name="__main__")
