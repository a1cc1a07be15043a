"""The model's `config.json` (or GGUF file) and tokenizer, here or in the cache, and the parameters counted from it.

Nothing is fetched. Counts are exact for the families below, dense Llama-like decoders and mixtures of experts (tests
hold them to published counts and to transformers' own models).
"""

from dataclasses import astuple, dataclass
from pathlib import Path

from nemo_aopsd.cluster.doctor.result import ERROR, OK, WARN, Check
from nemo_aopsd.errors import UserError
from nemo_aopsd.models.config_json import (
    TOKENIZER_FILES,
    ModelConfig,
    find_cached,
    find_model_config,
    find_published,
    how_to_have,
    is_hub_name,
)
from nemo_aopsd.models.gguf import read_gguf

DENSE = ("llama", "mistral", "qwen2", "qwen3")
EXPERTS = ("qwen3_moe",)
_EXPECTED = "a model directory, a GGUF file, or a model of the hub"
_EXPECTED_LOCAL = "a model directory or a GGUF file; the local engine downloads nothing"


@dataclass(frozen=True)
class Layer:
    """Parameters of one decoder layer."""

    attention: int
    mlp: int  # 0 where experts take its place
    router: int
    experts: int  # all of them
    norms: int


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters, and the widths that memory depends on."""

    layers: tuple[Layer, ...]
    embedding: int
    head: int  # 0 where it is the embedding
    final_norm: int
    hidden: int
    vocabulary: int
    query_width: int  # heads x width of a head
    key_heads: int
    head_width: int
    mlp_width: int  # at work on one token, the chosen experts' together
    experts_per_token: int  # 0 for a dense model

    @property
    def total(self) -> int:
        body = sum(sum(astuple(layer)) for layer in self.layers)
        return body + self.embedding + self.head + self.final_norm

    def kv_bytes(self) -> int:
        """Keys and values of one token in all layers, in bfloat16."""
        return 4 * len(self.layers) * self.key_heads * self.head_width


def read_size(config: ModelConfig) -> ModelSize:
    """Raises UserError on a family whose layers are not known here, or a number that is not said."""
    family = config.model_type
    if family not in (*DENSE, *EXPERTS):
        known = ", ".join((*DENSE, *EXPERTS))
        raise UserError(f"{config.where}: model_type {family!r}; parameters are counted for {known} only. Choose one.")
    hidden, vocabulary = config.need("hidden"), config.need("vocabulary")
    chosen = config.need("experts_per_token") if family in EXPERTS else 0
    return ModelSize(
        layers=tuple(_layer(config, index) for index in range(config.need("layers"))),
        embedding=vocabulary * hidden,
        head=0 if config.ties_embedding else vocabulary * hidden,
        final_norm=hidden,
        hidden=hidden,
        vocabulary=vocabulary,
        query_width=config.need("heads") * config.need("head_width"),
        key_heads=config.need("key_heads"),
        head_width=config.need("head_width"),
        mlp_width=chosen * config.need("expert_width") if chosen else config.need("mlp_width"),
        experts_per_token=chosen,
    )


def _layer(config: ModelConfig, index: int) -> Layer:
    family, hidden, width = config.model_type, config.need("hidden"), config.need("head_width")
    query, key = config.need("heads") * width, config.need("key_heads") * width
    attention = 2 * hidden * query + 2 * hidden * key
    if family == "qwen2" or config.attention_bias:
        attention += query + 2 * key
    if config.attention_bias and family != "qwen2":
        attention += hidden  # of the output projection
    if family in ("qwen3", "qwen3_moe"):
        attention += 2 * width
    if family in EXPERTS and index not in config.dense_layers and (index + 1) % config.expert_step == 0:
        number = config.need("experts")
        experts = number * 3 * hidden * config.need("expert_width")
        return Layer(attention, 0, number * hidden, experts, 2 * hidden)
    mlp = 3 * hidden * config.need("mlp_width")
    if config.mlp_bias:
        mlp += 2 * config.need("mlp_width") + hidden
    return Layer(attention, mlp, 0, 0, 2 * hidden)


def check_model(name: str, engine: str = "nemo_rl") -> tuple[Check, ModelConfig | None]:
    """The finding, and what is known of the model: of a published one also before it is downloaded."""
    path = Path(name)
    is_gguf = path.suffix == ".gguf" and path.is_file()
    try:
        config = read_gguf(path) if is_gguf else find_model_config(name)
    except UserError as error:
        return Check("model", ERROR, str(error), _EXPECTED, "Download the model again"), None
    if config and (is_gguf or engine != "local" or path.is_dir()):
        return Check("model", OK, f"{name}: {config.model_type}", _EXPECTED), config
    return _missing("model", name, engine), config or find_published(name)


def check_tokenizer(name: str, engine: str = "nemo_rl") -> Check:
    """A GGUF file has its tokenizer inside."""
    is_cached = engine != "local" and any(find_cached(name, file) for file in TOKENIZER_FILES)
    is_here = Path(name).is_file() or any(Path(name, file).is_file() for file in TOKENIZER_FILES) or is_cached
    return Check("tokenizer", OK, name, _EXPECTED) if is_here else _missing("tokenizer", name, engine)


def _missing(check: str, name: str, engine: str) -> Check:
    """Only NeMo RL can still fetch a name spelt owner/name when the run starts."""
    if engine == "local":
        found = f"{name}: no folder or file that has it (looked from {Path.cwd()})"
        return Check(check, ERROR, found, _EXPECTED_LOCAL, how_to_have(name, "policy.model_name"))
    could_be_fetched = is_hub_name(name)
    remedy = "Check the path, or name a model of the hub: owner/name"
    if could_be_fetched:
        remedy = f"Check the name; or, where there is a network, hf download {name}, with HF_HOME set to the same cache"
    found = f"{name}: neither in the cache nor a folder or file that has it (looked from {Path.cwd()})"
    return Check(check, WARN if could_be_fetched else ERROR, found, _EXPECTED, remedy)
