"""Tiny random models for the tests of the local engine, and plain references: one row at a time, no cache."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nemo_aopsd.config.nemo_rl_keys import OptimizerKwargs
from nemo_aopsd.config.schema import TeacherConfig
from nemo_aopsd.engines.local.settings import Settings
from nemo_aopsd.types import Branch, Tokens

END = 1
VOCABULARY = ["<pad>", "<end>", "<user>", "<assistant>", *(chr(code) for code in range(32, 92))]
TEMPLATE = (
    "{% for m in messages %}<user>{{ m['content'] }}<end>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}[]{% endif %}{% endif %}"
)


def tiny_model(
    kind: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.3,
    num_words: int = len(VOCABULARY),
    end: int = END,
) -> PreTrainedModel:
    """Two layers, four query heads on two key heads; weights large enough that predictions are far from uniform."""
    shape = {
        "vocab_size": num_words,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": scale,
        "eos_token_id": end,
        "bos_token_id": None,
        "pad_token_id": 0,
        "tie_word_embeddings": kind == "llama",
    }
    torch.manual_seed(seed)
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=16, **shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape))
    return model.to(dtype).eval()


def tiny_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a character."""
    core = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(VOCABULARY)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<end>",
        pad_token="<pad>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_settings(**changes) -> Settings:
    values = {
        "model": Path("tiny"),
        "tokenizer": Path("tiny"),
        "optimizer": OptimizerKwargs(lr=1e-2),
        "teacher": TeacherConfig(),
        "judge": None,
        "max_total_sequence_length": 1200,
        "generation_batch_size": 4,
        "logprob_batch_size": 3,
        "train_micro_batch_size": 2,
    }
    return Settings(**(values | changes))


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, prompt: Tokens, response: Tokens) -> torch.Tensor:
    """Log-probs [T] by one plain forward over one row."""
    if not response:
        return torch.empty(0)
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0].float()
    logprobs = logits.log_softmax(-1)
    return torch.stack([logprobs[len(prompt) - 1 + t, token] for t, token in enumerate(response)])


@torch.no_grad()
def plain_greedy(model: PreTrainedModel, prompt: Tokens, length: int) -> Tokens:
    """Greedy continuation that re-reads everything for each token; stops at the end token, included."""
    tokens: Tokens = []
    while len(tokens) < length and (not tokens or tokens[-1] != END):
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, -1]
        tokens = [*tokens, int(logits.argmax())]
    return tokens


def plain_continuation(model: PreTrainedModel, prompt: Tokens, response: Tokens, branch: Branch, length: int) -> Branch:
    if branch.tokens and (branch.tokens[-1] == END or len(branch.tokens) >= length):
        return branch
    before = prompt + response[: branch.position] + branch.tokens
    rest = plain_greedy(model, before, length - len(branch.tokens))
    return Branch(branch.position, branch.tokens + rest)
