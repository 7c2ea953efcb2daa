"""Our models and tokenisers as those of Transformers, in memory and on disk.

Tokenisers encode as `sample` does: a text begins with the token that ends the one before, nothing
is padded or truncated, and a text that spells the name of a special token is only text.
"""

import os
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from staircase_attention.checks import input_error
from staircase_attention.data.tokenisers import (
    BYTE_OF_CHARACTER,
    END_NAME,
    NUM_BYTES,
    byte_level,
    reading,
)
from staircase_attention.files import save_folder
from staircase_attention.huggingface.config import CORE_FIELDS, StaircaseConfig
from staircase_attention.huggingface.model import StaircaseForCausalLM
from staircase_attention.models import SequenceModel
from staircase_attention.models.sequence_model import describe

# Each turn ends with the separator of `staircase chat`; who speaks is not written down.
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content + '\\n\\n\\n' }}{% endfor %}"
MODEL_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [staircase-attention]
---
# {name}

A language model of {number:,} parameters, exported by staircase-attention: {facts}.

With `pip install 'staircase-attention[huggingface]'`:

```python
from transformers import pipeline

writer = pipeline("text-generation", model="{name}", trust_remote_code=True)
print(writer("Once upon a time"))
```
"""
TokenizerSource = Tokenizer | str | os.PathLike[str]


def wrap(model: SequenceModel, **tokens: Any) -> StaircaseForCausalLM:  # noqa: ANN401
    """The same model, with the same weights, as a model of Transformers; nothing is copied.

    Special tokens are named as in its config: eos_token_id=3.
    """
    if not isinstance(model, SequenceModel):
        raise input_error(
            "the model must be a SequenceModel", type(model).__name__, "pass a model of the family"
        )
    if model.output_size != model.vocab_size:
        rule = "a causal language model must have output_size = vocab_size"
        received = f"{model.output_size} and {model.vocab_size}"
        raise input_error(rule, received, "build the model without output_size")
    if model.memory_shapes:
        rule = "a model for Transformers must have the family's own layers"
        raise input_error(rule, "blocks of your own", "use the SequenceModel itself")
    config = StaircaseConfig(
        vocab_size=model.vocab_size,
        schedule=model.schedule,
        **{name: getattr(model.config, name) for name in CORE_FIELDS},
        dtype=model.output.weight.dtype,
        **tokens,
    )
    return StaircaseForCausalLM.around(model, config)


def export(
    model: SequenceModel,
    folder: str | os.PathLike[str],
    *,
    tokenizer: TokenizerSource | None = None,
    eos_token_id: int | list[int] | None = None,
) -> Path:
    """Write a model to a folder that `from_pretrained` reads: config, weights, tokeniser, code.

    The tokeniser is an object or its JSON file. Without one, a model of 256 tokens gets the byte
    tokeniser, one of 257 the byte tokeniser with an end token, and any other none. Bytes without an
    end token end with byte 0, which is in no text. A text begins with the token that ends the one
    before, and padding is that token, too.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise input_error("an export needs a folder that is new or empty", target, "name another")
    found = None
    if tokenizer is not None:
        found = read_tokenizer(tokenizer, model.vocab_size)
    elif model.vocab_size in (NUM_BYTES, NUM_BYTES + 1):
        has_end_symbol = model.vocab_size == NUM_BYTES + 1
        found = byte_tokenizer(has_end_symbol=has_end_symbol)
        if eos_token_id is None:
            eos_token_id = NUM_BYTES if has_end_symbol else 0
    end = eos_token_id[0] if isinstance(eos_token_id, list) else eos_token_id
    wrapped = wrap(model, bos_token_id=end, eos_token_id=eos_token_id, pad_token_id=end)
    fast = None if found is None else for_transformers(found, wrapped.config)
    facts = describe(model.signature)
    card = MODEL_CARD.format(facts=facts, number=model.num_parameters, name=target.name)

    def save(scratch: Path) -> None:
        wrapped.save_pretrained(scratch)
        for weights in scratch.glob("*.safetensors"):
            # Which safetensors writes for their owner alone.
            weights.chmod((scratch / "config.json").stat().st_mode)
        if fast is not None:
            fast.save_pretrained(scratch)
        (scratch / "README.md").write_text(card)

    save_folder(target, save)
    return target


def byte_tokenizer(*, has_end_symbol: bool = False) -> Tokenizer:
    """A tokeniser whose ids are byte values; the end token is 256.

    Bytes that are not UTF-8, which a model can make, are decoded as U+FFFD.

    >>> byte_tokenizer().encode("é!").ids
    [195, 169, 33]
    """
    tokenizer = byte_level(models.BPE(vocab=BYTE_OF_CHARACTER, merges=[]), use_regex=False)
    if has_end_symbol:
        tokenizer.add_special_tokens([END_NAME])
    return tokenizer


def read_tokenizer(source: TokenizerSource, vocab_size: int) -> Tokenizer:
    """A copy of a tokeniser, or of the one in a JSON file, that only encodes."""
    if isinstance(source, Tokenizer):
        tokenizer = Tokenizer.from_str(source.to_str())
    else:
        rule = "a tokeniser is read from a file that Tokenizer.save wrote"
        with reading(rule, str(source), "save it again"):
            tokenizer = Tokenizer.from_file(os.fspath(source))
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocab_size:
        rule = f"a tokeniser must have ids below the model's vocab_size = {vocab_size}"
        received = f"one with ids up to {highest}"
        raise input_error(rule, received, "use the one that the model was trained with")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # It may add special tokens that our training does not have.
    tokenizer.post_processor = None
    return tokenizer


def for_transformers(tokenizer: Tokenizer, config: StaircaseConfig) -> PreTrainedTokenizerFast:
    """The tokeniser as one of Transformers, with the special tokens of the config."""
    special = {
        role: AddedToken(name_of(number, tokenizer), normalized=False, special=True)
        for role in ("bos_token", "eos_token", "pad_token")
        if isinstance(number := getattr(config, f"{role}_id"), int)
    }
    # A byte model without an end token was trained without a start, too.
    if "bos_token" in special and config.vocab_size != NUM_BYTES:
        start = special["bos_token"].content
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], special_tokens=[(start, config.bos_token_id)]
        )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        # Generation continues at a row's end, so padding comes before its start.
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        # A text that spells a special token stays text.
        split_special_tokens=True,
        chat_template=CHAT_TEMPLATE,
        **special,
    )


def name_of(number: int, tokenizer: Tokenizer) -> str:
    """The name of a special token; the id after all others gets a new one."""
    name = tokenizer.id_to_token(number)
    if name is None:
        name = END_NAME
        tokenizer.add_special_tokens([name])
        if tokenizer.token_to_id(name) != number:
            rule = "a special token must be one of the tokeniser's ids or the one after them"
            raise input_error(rule, number, "name another")
    return name
