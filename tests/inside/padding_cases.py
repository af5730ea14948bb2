"""Padding is cut where loss and gradient are the same without it, and stays everywhere else.

These import torch: ``test_padding.py`` runs them in a process of their own.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy
import pytest
import torch
import transformers

from cputune.inside.applying.hooking import nothing, put
from cputune.inside.applying.order import OfLikeLength, Order, token_lengths
from cputune.inside.applying.padding import COMPILED, NO_MASK, NO_NAMES, NO_TAIL, TOGETHER, Cutter
from cputune.inside.applying.padding_check import OUTSIDE, difference
from cputune.inside.applying.trimming import IGNORED, Tail, counted, cut, has_tail, tails_of
from cputune.inside.messages import Speaker
from cputune.inside.meter import Meter

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "intermediate_size": 32}
LENGTH = 24


def batch_of(*used: int, **more: Any) -> dict[str, Any]:
    """Samples of so many tokens each, padded to LENGTH on the right."""
    torch.manual_seed(1)
    ids = torch.randint(5, 50, (len(used), LENGTH))
    mask = torch.stack([(torch.arange(LENGTH) < tokens).long() for tokens in used])
    return {"input_ids": ids * mask, "attention_mask": mask, **more}


def labels_of(batch: Mapping[str, Any], padded: int = IGNORED) -> Any:
    return torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 2, padded)


def model_of(kind: str, config: Any) -> Any:
    torch.manual_seed(2)
    return getattr(transformers, kind)(config).train()


def bert(kind: str = "BertForSequenceClassification", **more: Any) -> Any:
    return model_of(kind, transformers.BertConfig(**SIZES, **more))


def run(model: Any, batch: Mapping[str, Any]) -> Any:
    return model(**batch)


def why_not(model: Any, batch: Mapping[str, Any]) -> str | None:
    """What the model answers where the batch has a tail to cut."""
    assert has_tail(batch)
    return difference(model, batch, cut(batch), run)


def answered(model: Any, batch: Mapping[str, Any]) -> Cutter:
    cutter = Cutter(nothing)
    cutter.ask(model, batch, run)
    return cutter


def pair(length: int, used: int) -> dict[str, Any]:
    """A second input of two samples, so long, of which so many tokens are used."""
    mask = (torch.arange(length) < used).long().expand(2, length)
    return {"pair_input_ids": mask * 7, "pair_attention_mask": mask}


def choices_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Two samples of two choices each."""
    four = {name: value.view(2, 2, LENGTH) for name, value in batch.items()}
    return {**four, "labels": torch.tensor([0, 1])}


CLASS = {"labels": torch.tensor([0, 1])}

_AUTOCAST: list[bool] = []


def told_of_autocast() -> list[bool]:
    """Whether each forward since now ran under autocast; what belongs to a model is put back."""
    _AUTOCAST.clear()
    return _AUTOCAST


def tells_of_autocast(*_: object) -> None:
    _AUTOCAST.append(torch.is_autocast_enabled("cpu"))


class TestWhatIsCut:
    def test_every_tensor_of_the_length_in_one_piece_to_a_multiple_of_eight(self) -> None:
        batch = batch_of(3, 9, **CLASS)
        batch["labels_of_tokens"] = labels_of(batch)
        shorter = cut(batch)
        shapes = {name: value.shape[-1] for name, value in shorter.items()}
        tokens = dict.fromkeys(("input_ids", "attention_mask", "labels_of_tokens"), 16)
        assert shapes == {**tokens, "labels": 2}
        assert all(value.is_contiguous() for value in shorter.values())
        assert batch["input_ids"].shape == (2, LENGTH), "the script's own batch stays"

    def test_a_batch_of_transformers_stays_one(self) -> None:
        shorter = cut(transformers.BatchEncoding(batch_of(3, 9)))
        assert type(shorter) is transformers.BatchEncoding
        assert shorter["input_ids"].shape == (2, 16)

    @pytest.mark.parametrize(
        ("more", "shapes"),
        [
            # several inputs of unlike length, each by its own mask
            (pair(40, 20), {"pair_input_ids": (2, 24), "pair_attention_mask": (2, 24)}),
            ({"a_bias_mask": torch.zeros(2, 1, LENGTH, LENGTH)}, {"a_bias_mask": (2, 1, 16, 16)}),
            # numbers as wide as the length keep their width
            ({"inputs_embeds": torch.zeros(2, LENGTH, LENGTH)}, {"inputs_embeds": (2, 16, LENGTH)}),
            # a target as long as the source keeps all that it says
            ({"labels": torch.full((2, LENGTH), 7)}, {"labels": (2, LENGTH)}),
        ],
    )
    def test_each_tensor_by_its_mask(
        self, more: dict[str, Any], shapes: dict[str, tuple[int, ...]]
    ) -> None:
        shorter = cut(batch_of(3, 9, **more))
        assert {name: tuple(shorter[name].shape) for name in shapes} == shapes

    def test_encodings_of_one_length_are_cut_each_by_the_mask_that_is_named_like_it(self) -> None:
        other = {"input_ids_2": torch.ones(2, LENGTH), "attention_mask_2": torch.ones(2, LENGTH)}
        shorter = cut(batch_of(3, 9, **pair(LENGTH, 2), **other))
        assert {name: value.shape[1] for name, value in shorter.items()} == {
            "input_ids": 16,
            "attention_mask": 16,
            "pair_input_ids": 8,
            "pair_attention_mask": 8,
            "input_ids_2": LENGTH,
            "attention_mask_2": LENGTH,
        }

    def test_encodings_in_a_batch_are_cut_each_by_itself(self) -> None:
        batch = {"query": batch_of(3, 9), "texts": [batch_of(3, 3), batch_of(LENGTH)], "n": [2]}
        shorter = cut(batch)
        (some, whole), query = shorter["texts"], shorter["query"]
        assert [one["input_ids"].shape[1] for one in (query, some, whole)] == [16, 8, LENGTH]
        assert whole is batch["texts"][1], "what has no tail is as it was"
        assert shorter["n"] == [2]
        assert cut((batch_of(3, 9), CLASS))[0]["input_ids"].shape == (2, 16)
        assert counted(batch) == (36 + 42, 48 + 48 + 24, 32 + 16 + 24)

    def test_choices_are_cut_to_the_longest_of_all(self) -> None:
        batch = choices_of(batch_of(3, 9, 5, 2))
        assert tails_of(batch) == {"attention_mask": Tail(LENGTH, 16)}
        shorter = cut(batch)
        assert shorter["input_ids"].shape == (2, 2, 16)
        assert shorter["labels"].shape == (2,)
        assert counted(batch) == (96 - 19, 96, 64)

    def test_targets_are_cut_by_their_own_labels(self) -> None:
        labels = torch.full((2, 40), IGNORED)
        labels[1, :19] = 7
        batch = batch_of(3, 9, labels=labels, decoder_input_ids=torch.ones(2, 40).long())
        shapes = {name: value.shape[1] for name, value in cut(batch).items()}
        of_source, of_target = {"input_ids": 16, "attention_mask": 16}, {"labels": 24}
        assert shapes == {**of_source, **of_target, "decoder_input_ids": 24}

    def test_labels_of_several_classes_for_each_token_keep_their_columns(self) -> None:
        labels = torch.full((2, LENGTH, 5), IGNORED)
        labels[0, 17, 3] = 1
        assert not has_tail(batch_of(3, 9, labels=labels)), "17 of 24 columns are 24"

    def test_what_is_counted_is_padding_tokens_and_what_is_left(self) -> None:
        assert counted(batch_of(3, 9)) == (36, 48, 32)
        assert counted({"pixel_values": torch.zeros(2, 3, 8, 8)}) == (0, 0, 0)
        assert counted((torch.zeros(2, 8),)) == counted(torch.zeros(2)) == (0, 0, 0)


class TestWhatTheModelSays:
    @pytest.mark.parametrize(
        ("kind", "config"),
        [
            ("BertForSequenceClassification", "BertConfig"),
            ("RobertaForSequenceClassification", "RobertaConfig"),
            ("GPT2ForSequenceClassification", "GPT2Config"),  # by its last token
        ],
    )
    def test_classification_is_the_same(self, kind: str, config: str) -> None:
        sizes = SIZES if "GPT2" not in kind else {"vocab_size": 50, "n_embd": 16, "n_head": 2}
        more = {"pad_token_id": 0} | ({"n_layer": 1} if "GPT2" in kind else {})
        model = model_of(kind, getattr(transformers, config)(**sizes, **more))
        assert why_not(model, batch_of(3, 9, **CLASS)) is None

    def test_multiple_choice_is_the_same(self) -> None:
        assert why_not(bert("BertForMultipleChoice"), choices_of(batch_of(3, 9, 5, 2))) is None

    def test_a_target_is_the_same_without_the_columns_that_it_does_not_use(self) -> None:
        sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2}
        config = transformers.T5Config(num_layers=1, decoder_start_token_id=0, **sizes)
        labels = torch.full((2, 40), IGNORED)
        labels[:, :7] = 5
        model = model_of("T5ForConditionalGeneration", config)
        assert why_not(model, batch_of(3, 9, labels=labels)) is None

    def test_labels_of_tokens_are_the_same_if_padding_has_none(self) -> None:
        batch = batch_of(3, 9)
        for kind in ("BertForTokenClassification", "BertForMaskedLM"):
            assert why_not(bert(kind), {**batch, "labels": labels_of(batch)}) is None

    def test_answers_that_are_sought_over_all_positions_are_not_the_same(self) -> None:
        where = {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([2, 3])}
        why = why_not(bert("BertForQuestionAnswering"), batch_of(3, 9, **where))
        assert why.startswith("the loss counts it: ")

    def test_a_model_that_mixes_positions_without_a_mask_is_not_the_same(self) -> None:
        model = model_of("FNetForSequenceClassification", transformers.FNetConfig(**SIZES))
        batch = batch_of(3, 9, **CLASS)

        def without_mask(model: Any, batch: Mapping[str, Any]) -> Any:
            return model(input_ids=batch["input_ids"], labels=batch["labels"])

        assert difference(model, batch, cut(batch), without_mask) is not None

    def test_a_model_of_one_length_says_so(self) -> None:
        class Flat(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.flat = torch.nn.Linear(LENGTH, 2)

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                return self.flat(input_ids.float() * attention_mask)

        why = why_not(Flat(), batch_of(3, 9))
        assert why.startswith("the model fails without it (RuntimeError: ")

    def test_without_a_loss_the_outputs_stand_for_it(self) -> None:
        batch = batch_of(3, 9)
        assert why_not(bert(), batch) is None
        assert why_not(bert("BertForTokenClassification"), batch) == OUTSIDE

    def test_it_is_asked_in_fp32_if_the_script_trains_in_bf16(self) -> None:
        model, inside = bert(), told_of_autocast()
        model.register_forward_pre_hook(tells_of_autocast)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert why_not(model, batch_of(3, 9, **CLASS)) is None
            assert torch.is_autocast_enabled("cpu")
        assert inside == [False, False]

    def test_the_autocast_that_accelerate_puts_around_forward_is_left_out(self) -> None:
        model = bert()
        model._original_forward = model.forward
        wrapped = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
        model.forward = wrapped
        inside = told_of_autocast()
        model.bert.register_forward_pre_hook(tells_of_autocast)
        assert why_not(model, batch_of(3, 9, **CLASS)) is None
        assert inside == [False, False]
        assert model.forward is wrapped

    def test_it_is_asked_without_dropout_and_leaves_nothing_behind(self) -> None:
        model, batch = bert(), batch_of(3, 9, **CLASS)
        before, dice = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
        model.bert.embeddings.dropout.eval()
        assert why_not(model, batch) is None
        assert model.training
        assert not model.bert.embeddings.dropout.training
        assert all(one.grad is None for one in model.parameters())
        assert all(bool((before[name] == now).all()) for name, now in model.state_dict().items())
        assert bool((torch.random.get_rng_state() == dice).all())


ASKED = 0
"""A variable of the script that a loss counts up."""


class Counting(torch.nn.Module):  # type: ignore[misc]
    """A model with all the state that people give to one: it changes with every batch."""

    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(50, 2)
        self.register_buffer("queue", torch.zeros(3))
        self.register_buffer("grows", torch.zeros(0))
        self.rows, self.last, self.names = deque([1, 2], 2), None, {"first": 1}
        calls = 0

        def counted() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.counted = counted
        self.register_forward_hook(lambda *_: self.names.update(hooked=counted()))

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
        global ASKED
        ASKED += 1
        found = self.layer(input_ids) * attention_mask[..., None]
        self.queue += found.detach().sum()
        self.grows.resize_(4)
        self.last = found.detach()
        self.rows.append(len(self.seen))
        Counting.seen = [*self.seen, ASKED]
        self.names["drawn"] = (random.random(), float(numpy.random.rand()), float(torch.rand(())))
        labels.zero_()
        return (found.sum() + self.queue.sum(),)


def test_a_question_leaves_the_state_of_a_model_as_it_was() -> None:
    model, batch = Counting(), batch_of(3, 9, labels=torch.ones(2))
    draws = [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()]
    assert why_not(model, batch) is None, "both were asked with the same state"
    assert (ASKED, Counting.seen, model.counted()) == (0, [], 1)
    assert (model.queue.tolist(), model.grows.tolist()) == ([0.0] * 3, [])
    assert (list(model.rows), model.last, model.names) == ([1, 2], None, {"first": 1})
    assert batch["labels"].tolist() == [1, 1]
    assert draws[0] == random.getstate()
    assert draws[1] == numpy.random.get_state()[1].tolist()
    assert torch.equal(draws[2], torch.get_rng_state())


def test_a_question_leaves_the_queue_of_a_loss_as_it_was(patched: Cutter, tmp_path: Any) -> None:
    """As MoCo has it: what is compared with are the samples of earlier batches."""

    class Moco(transformers.Trainer):  # type: ignore[misc]
        queue, sizes = torch.zeros(0), ()

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kw: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kw)
            self.sizes = (*self.sizes, len(self.queue))
            self.queue = torch.cat([self.queue, loss.detach()[None]])
            return loss

    made = Moco(model=bert(), args=arguments(tmp_path), train_dataset=Padded())
    made.train()
    assert patched.allowed, patched.why
    assert made.sizes == (0, 1, 2)


class TestWhenItIsAsked:
    @pytest.mark.parametrize(
        ("batch", "allowed", "why"),
        [
            ({"input_ids": torch.ones(2, LENGTH)}, False, NO_MASK),
            ({"pixel_values": torch.zeros(2, 3, 8, 8)}, False, NO_MASK),  # ViT
            ({"attention_mask": torch.zeros(2, 1, LENGTH, LENGTH)}, False, NO_MASK),
            ({"attention_mask": torch.zeros(2, LENGTH, LENGTH)}, False, NO_MASK),  # packed
            (batch_of(LENGTH, LENGTH), None, NO_TAIL),
            (batch_of(3, LENGTH), None, NO_TAIL),
            ({"attention_mask": batch_of(3, 9)["attention_mask"].flip(1)}, None, NO_TAIL),
        ],
    )
    def test_a_batch_without_a_tail_is_not(
        self, batch: Mapping[str, Any], allowed: bool | None, why: str
    ) -> None:
        cutter = answered(None, batch)
        assert (cutter.allowed, cutter.why) == (allowed, why)
        assert cutter.shortened(batch) is batch

    def test_a_compiled_model_is_not(self) -> None:
        batch = batch_of(3, 9, **CLASS)
        for name in ("_orig_mod", "_compiled_call_impl"):
            assert answered(SimpleNamespace(**{name: bert()}), batch).why == COMPILED

    def test_a_trainer_of_trl_is_not_asked_if_it_has_padded_too_much(self) -> None:
        cutter = Cutter(nothing, cuts=False)
        # its batches are as long as their longest sample, by default
        cutter.ask(None, batch_of(3, LENGTH), run, together=True)
        assert (cutter.allowed, cutter.why) == (None, NO_TAIL)
        cutter.ask(None, batch_of(3, 9), run, together=True)
        assert (cutter.allowed, cutter.why) == (False, TOGETHER)

    def test_a_rank_shows_what_is_done(self) -> None:
        cutter = answered(bert(), batch_of(3, 9, **CLASS))
        assert cutter.report() == {"padding": "cut"}
        assert cutter.shortened(batch_of(3, 9))["input_ids"].shape == (2, 16)
        cutter.cuts = False
        assert cutter.report() == {"padding": "may be cut"}
        assert cutter.shortened(batch_of(3, 9))["input_ids"].shape == (2, LENGTH)
        assert Cutter(nothing, cuts=False).report() == {"padding_unknown": NO_TAIL}
        assert answered(None, {}).report() == {"padding": f"full, for {NO_MASK}"}


def test_a_step_says_how_much_its_batches_hold_as_they_are_trained_on() -> None:
    told: list[Any] = []
    meter = Meter(Speaker(""))
    meter.speaker.say = told.append  # type: ignore[method-assign]
    meter.shortened = answered(bert(), batch_of(3, 9, **CLASS)).shortened
    meter.begin("trainer")
    for batch in (batch_of(3, 9), batch_of(3, LENGTH), [torch.zeros(2, 5), "text"], object()):
        meter.see_batch(batch)
        meter.micro_step(2, None, batch)
    meter.step(mean_loss=False)
    meter.step(mean_loss=False)
    sizes = [message["size"] for message in told if message["event"] == "step"]
    assert sizes == [2 * 2 * 16 + 2 * 2 * LENGTH + 10, 0]


class Padded(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        one = batch_of(3 + index)
        return {**{name: value[0] for name, value in one.items()}, "labels": index % 2}


def arguments(folder: Any, batch: int = 2) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Cutter:
    """A cutter in torch and transformers of this process, until the test ends."""
    cutter = Cutter(nothing)
    trainer = sys.modules["transformers"].Trainer
    monkeypatch.setattr(torch.nn.Module, "__call__", torch.nn.Module.__call__)
    monkeypatch.setattr(trainer, "training_step", trainer.training_step)
    loaders = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(loaders, "__next__", loaders.__next__)
    for module, what, called in cutter.hooks():
        put(sys.modules[module], what, called)
    return cutter


class TestWhereItIsPut:
    def test_a_loop_of_the_scripts_own(self, patched: Cutter) -> None:
        model, seen = bert(), []
        for batch in torch.utils.data.DataLoader(Padded(), batch_size=2):
            seen.append(batch["input_ids"].shape[1])
            model(**batch).loss.backward()
        assert patched.allowed, patched.why
        assert seen == [LENGTH, 8, 8]
        other = next(iter(torch.utils.data.DataLoader(Padded(), batch_size=2)))
        assert other["input_ids"].shape[1] == LENGTH, "data that is not trained on stays"

    def test_a_loop_whose_batches_have_no_names(self, patched: Cutter) -> None:
        model, data = bert(), batch_of(3, 9)
        pairs = torch.utils.data.TensorDataset(data["input_ids"], data["attention_mask"])
        for ids, mask in torch.utils.data.DataLoader(pairs, batch_size=2):
            model(input_ids=ids, attention_mask=mask, **CLASS).loss.backward()
        assert (patched.allowed, patched.why) == (False, NO_NAMES)

    def test_evaluation_alone_asks_nothing(self, patched: Cutter) -> None:
        with torch.no_grad():
            bert()(**batch_of(3, 9))
        bert().eval()(**batch_of(3, 9))
        assert patched.allowed is None

    def test_a_trainer(self, patched: Cutter, tmp_path: Any) -> None:
        seen = []

        class Looking(transformers.Trainer):  # type: ignore[misc]
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **kw: Any) -> Any:
                seen.append(inputs["input_ids"].shape[1])
                return super().compute_loss(model, inputs, *args, **kw)

        Looking(model=bert(), args=arguments(tmp_path), train_dataset=Padded()).train()
        assert patched.allowed, patched.why
        assert seen == [LENGTH, 6, 8, 8, 8], "asked with it and without any, then three steps"


class Ragged(Padded):
    """Lengths that come and go, so that as drawn each step has some of each."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index % 20)


class TestSamplesOfLikeLength:
    def test_each_pass_takes_every_sample_once_in_another_order(self) -> None:
        sampler, again = (OfLikeLength([n % 20 for n in range(403)], 4, 7) for _ in range(2))
        first = list(sampler)
        assert first == list(again), "the same on every rank"
        assert sorted(first) == list(range(403))
        assert len(sampler) == 403
        sampler.set_epoch(1)
        assert list(sampler) != first

    def test_those_of_a_step_are_alike_and_steps_of_all_lengths_follow_each_other(self) -> None:
        used = [n % 20 for n in range(400)]
        taken = list(OfLikeLength(used, 4, 7))
        steps = [[used[at] for at in taken[first : first + 4]] for first in range(0, 400, 4)]
        assert sum(max(step) - min(step) for step in steps) < 100
        means = [sum(map(max, steps[part : part + 20])) / 20 for part in (0, 20, 40, 60, 80)]
        assert max(means) - min(means) < 2, "any twenty steps are as long as all"

    @pytest.mark.parametrize(
        ("data", "told"),
        [
            (Padded(), [3, 4, 5, 6, 7, 8]),
            ([{"attention_mask": [1, 1, 0]}], [2]),
            ([{"input_ids": [1, 1, 0]}], "its samples do not tell their length (KeyError)"),
            ([(1, 2)], "its samples do not tell their length (TypeError)"),
            (object(), "its samples do not tell their length (TypeError)"),
        ],
    )
    def test_lengths_are_those_of_the_masks(self, data: Any, told: object) -> None:
        assert token_lengths(data) == told

    @pytest.mark.parametrize(
        ("own", "said"),
        [
            (torch.utils.data.RandomSampler(Ragged()), "length"),
            (
                torch.utils.data.SequentialSampler(Ragged()),
                "as found, for the script draws them by itself, and not at random",
            ),
        ],
    )
    def test_a_trainer_takes_its_samples_so(
        self, own: Any, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        trainer, told = transformers.Trainer, []
        order = Order(told.append)
        monkeypatch.setattr(trainer, "_get_train_sampler", lambda *_: own)
        put(trainer, "_get_train_sampler", order.sampler)
        made = trainer(model=bert(), args=arguments(tmp_path, 4), train_dataset=Ragged())
        used = [batch["attention_mask"].sum(1) for batch in made.get_train_dataloader()]
        assert order.report() == {"order": said}
        spread = [int(each.max() - each.min()) for each in used]
        assert (sum(spread) < 100) == (said == "length")
        assert len(told) == 1
