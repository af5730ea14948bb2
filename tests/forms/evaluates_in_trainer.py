"""A Trainer that evaluates, computes metrics, saves and takes the best of its models."""

from made import Rows, arguments, bert
from transformers import EarlyStoppingCallback, Trainer

Trainer(
    model=bert(),
    args=arguments(
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
    ),
    train_dataset=Rows(),
    eval_dataset=Rows(),
    compute_metrics=lambda seen: {"accuracy": (seen[0].argmax(-1) == seen[1]).mean()},
    callbacks=[EarlyStoppingCallback(2)],
).train()
