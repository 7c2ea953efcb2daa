"""Losses are those of Transformers, and `Trainer` trains, stops and resumes."""

import pytest
import torch
from language_models import VOCAB_SIZE, build, padded_left, padded_right, prompt, small_model
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from staircase_attention.huggingface import StaircaseForCausalLM, StateCache, wrap

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def manual_loss(logits, tokens, *, reduction="mean"):
    """Each token predicts the next."""
    flat = logits[:, :-1].flatten(0, 1).float()
    return functional.cross_entropy(flat, tokens[:, 1:].flatten(), reduction=reduction)


def test_the_loss_is_that_of_the_next_token():
    model = build()
    tokens = prompt(9, rows=3)
    labels = tokens.clone()
    labels[1, 4:] = -100
    output = wrap(model)(tokens, labels=labels)
    expected = manual_loss(model(tokens)[0], labels)
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    assert output.past_key_values is None


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["staircase", "feedback"])
def test_padding_leaves_loss_and_gradients_as_they_are_row_by_row(name, side):
    model = build(name)
    rows = [prompt(length, seed=seed) for seed, length in enumerate((7, 4, 9))]
    alone = sum(manual_loss(model(row)[0], row, reduction="sum") for row in rows) / (6 + 3 + 8)
    alone.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    tokens, mask = padded_left(rows)
    labels = tokens.masked_fill(mask == 0, -100)
    if side == "right":
        tokens, mask, labels = padded_right(rows)
    loss = wrap(model)(tokens, attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, alone, **CLOSE)
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_padding_on_the_right_costs_no_second_run(monkeypatch):
    model = build()
    runs = []
    whole = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *given, **more: runs.append(1) or whole(*given, **more)
    )
    tokens, mask, labels = padded_right([prompt(7), prompt(4), prompt(9)])
    wrap(model)(tokens, attention_mask=mask, labels=labels)
    assert len(runs) == 1


def test_the_output_may_be_a_tuple_or_some_of_the_logits():
    tokens = prompt(5)
    model = wrap(build())
    loss, whole = model(tokens, labels=tokens, return_dict=False)
    assert loss.shape == ()
    model.config.return_dict = False
    assert model(tokens, use_cache=False)[0].equal(whole)
    assert model(tokens, return_dict=True).logits.equal(whole)
    model.config.return_dict = True
    assert model(prompt(5), logits_to_keep=2).logits.equal(whole[:, -2:])
    assert model(prompt(5), logits_to_keep=torch.tensor([0, 3])).logits.equal(whole[:, [0, 3]])


def test_gradients_flow_through_a_cache_until_it_is_detached():
    model = build()
    cache = StateCache()
    first, second = prompt(5), prompt(5, seed=1)
    wrapped = wrap(model).train()
    wrapped(first, past_key_values=cache)
    wrapped(second, past_key_values=cache, labels=second).loss.backward()
    through = model.embedding.weight.grad.clone()
    model.zero_grad()
    cache = StateCache()
    wrapped(first, past_key_values=cache)
    cache.state = cache.state.detach()
    wrapped(second, past_key_values=cache, labels=second).loss.backward()
    assert not through.equal(model.embedding.weight.grad)


def rows_of(lengths):
    rows = (prompt(length, seed=seed)[0] for seed, length in enumerate(lengths))
    return [{"input_ids": row, "labels": row} for row in rows]


def collate(rows):
    tokens, mask, labels = padded_right([row["input_ids"][None] for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def trainer(model, rows, folder, **options):
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 10,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 1,
    }
    return Trainer(
        model=model,
        args=TrainingArguments(**arguments | options),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collate,
    )


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_trainer_resumes_from_its_checkpoint(tmp_path):
    rows = rows_of([9, 12, 7, 10] * 2)
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    straight = trainer(small_model(), rows, tmp_path, **options)
    straight.train()
    resumed = trainer(small_model(seed=9), rows, tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    torch.testing.assert_close(weights(resumed.model), weights(straight.model), rtol=0, atol=0)
    # The cache is not gathered with the predictions.
    assert resumed.predict(rows).predictions.shape == (8, 12, VOCAB_SIZE)
    read = StaircaseForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    torch.testing.assert_close(weights(read), weights(straight.model), rtol=0, atol=0)


def test_micro_batches_of_unequal_length_equal_one_batch(tmp_path):
    # Divided by rows instead of labels, the short rows would weigh too much.
    rows = rows_of([3, 12, 5, 9])
    found = []
    for size, number in ((4, 1), (1, 4)):
        model = small_model()
        options = {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": number,
            "max_steps": 2,
            "optim": "sgd",
        }
        trainer(model, rows, tmp_path, **options).train()
        found.append(weights(model))
    torch.testing.assert_close(*found, **CLOSE)


def test_trainer_recomputes_and_smooths_labels_of_the_next_token(tmp_path):
    rows = rows_of([8, 8])
    options = {"label_smoothing_factor": 0.1, "gradient_checkpointing": True, "max_steps": 1}
    model = small_model()
    learning = trainer(model, rows, tmp_path, **options)
    batch = collate(rows)
    with torch.no_grad():
        logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        targets = batch["labels"][:, 1:].flatten()
        expected = functional.cross_entropy(logits, targets, label_smoothing=0.1)
        found = learning.compute_loss(model, batch)
    torch.testing.assert_close(found, expected, **CLOSE)
    learning.train()
    assert model.is_gradient_checkpointing
