"""Configs that are refused: one message with file, line and remedy for each mistake."""

import re
from dataclasses import asdict

import pytest

from nemo_aopsd.config.checks import adapter, property_of
from nemo_aopsd.config.load import flatten, load_config
from nemo_aopsd.config.nemo_rl_keys import RunKeys
from nemo_aopsd.config.schema import SINGLE_PRECISION, AOPSDConfig, keys_of
from tests.config import BASE, message


def test_unknown_keys_and_blocks_are_named_with_file_line_and_the_nearest(write, base):
    path = write(BASE + "aopsd:\n  probes:\n    treshold: 1\n")
    assert re.match(
        rf"{path}:13: unknown key `aopsd\.probes\.treshold`\. .*`aopsd\.probes\.threshold`\?", message(path)
    )
    parent = write(BASE + "aopsd: {sede: 1}\n", "parent.yaml")  # the file that holds it, not its child
    text = message(write("defaults: parent.yaml\naopsd: {seed: 1}\n"))
    assert text.startswith(f"{parent}:11: unknown key `aopsd.sede`.") and "`aopsd.seed`" in text
    path = write(BASE + "polcy: {x: 1}\n")
    assert message(path).startswith(f"{path}:11: unknown block `polcy`. Did you mean `policy`?")
    load_config(write(BASE + "cluster: {num_nodes: 1}\nloss_fn: {}\nenv: {}\ngrpo: {}\nppo: null\n"))
    for override, expected in {
        "aopsd.beta_positive=1": "`aopsd.probes.beta_positive`?",  # of another block
        "aopsd.probes.treshold=1": "unknown key `aopsd.probes.treshold`. Did you mean `aopsd.probes.threshold`?",
        "policy.generation.max_new_token=5": "Did you mean `policy.generation.max_new_tokens`?",
        "aopds.seed=1": "unknown block `aopds`. Did you mean `aopsd`?",
        "seed=1": "unknown block `seed`. Did you mean `aopsd.seed`?",
        "log_dir=x": "Did you mean `logger.log_dir`?",
        "model_name=m": "unknown block `model_name`. Did you mean `policy.model_name`?",
        "aopsd.seed": "expected key=value",
        "aopsd.seed=[1,": "cannot read the value",
        '+env.x="a\\ud800"': "cannot read the value",  # half of a surrogate pair is no text
        '+env.x=["\\udfff"]': "cannot read the value",
        "+env.x=a\udcff": "cannot read the value",
    }.items():
        assert message(base, override).startswith(f"override `{override}`: ") and expected in message(base, override)


@pytest.mark.parametrize(
    ("override", "hint"),
    {
        "aopsd.delta=1": "",  # no `jsd_beta`
        "aopsd.probes.delta=1": "",
        "aopsd.teacher.kind=ema": "",  # of two other blocks
        "delta=1": "",  # no `data`
        "aopsd.teacher.ema=0.9": "`aopsd.teacher.ema_decay`",  # rather than the one of `curriculum`
        "aopsd.threshold=1": "`aopsd.judge.threshold` or `aopsd.probes.threshold`",
        "aopsd.model=x": "`aopsd.judge.model` or `policy.model_name`",
        "aopsd.max_new_tokens=9": "`aopsd.judge.max_new_tokens`, `aopsd.evaluation.max_new_tokens` or "
        "`policy.generation.max_new_tokens`",  # no `max_response_tokens`
        "aopsd.steps=9": "`aopsd.max_num_steps`",  # no `eps`
        "policy.lr=1": "`policy.optimizer.kwargs.lr`",  # no `precision`
        "checkpointing.dir=x": "`checkpointing.checkpoint_dir`",  # no `enabled`
    }.items(),
)
def test_a_hint_is_what_may_be_meant_or_none(base, override, hint):
    told = message(base, override)
    assert f"Did you mean {hint}?" in told if hint else "Did you mean" not in told


def test_all_faults_of_a_config_are_told_at_once(write):
    parent = write(BASE + "polcy: {x: 1}\naopsd: {seed: x, probes: {treshold: 1}}\n", "parent.yaml")
    child = write("defaults: parent.yaml\nlogger: {log_dri: x}\naopsd: {num_prompts_per_step: 6}\n")
    overrides = ["sede=1", "policy.max_grad_norm=0", "policy.generation.max_new_tokens", "aopsd.judge.kind=both"]
    lines = message(child, *overrides).splitlines()
    expected = (
        (f"{parent}:11: ", "polcy"),
        (f"{child}:2: ", "`logger.log_dir`?"),
        ("override `sede=1`: ", "unknown block"),
        ("override `policy.generation.max_new_tokens`: ", "expected key=value"),
        ("override `policy.max_grad_norm=0`: ", "above 0"),
        (f"{parent}:12: ", "`aopsd.seed` must be"),
        (f"{parent}:12: ", "`aopsd.probes.threshold`?"),
        ("override `aopsd.judge.kind=both`: ", "one of list, log_odds"),
        (f"{child}:3: ", "multiple of 4"),
    )
    for where, words in expected:
        assert len([line for line in lines if line.startswith(where) and words in line]) == 1, (where, lines)
    assert len(lines) == len(expected)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("aopsd.curriculum=shuffle", "Set aopsd.curriculum.name=shuffle."),
        ("aopsd.curriculum=shufle", "Set aopsd.curriculum.name=shuffle."),
        ("aopsd.objective=fkl", "Set aopsd.objective.name=fkl."),
        ("aopsd.context=solution", "Set aopsd.context.kind=solution."),
        ("aopsd.judge=log_odds", "Set aopsd.judge.kind=log_odds."),
        ("aopsd.teacher=ema", "Set aopsd.teacher.weights=ema."),
        ("aopsd.evaluation=x.jsonl", "Set aopsd.evaluation.data_path=x.jsonl."),
        ("aopsd.probes=3", "such as aopsd.probes.threshold=VALUE."),
        ("data.train=x.jsonl", "Set data.train.data_path=x.jsonl."),
    ],
)
def test_a_value_where_a_block_stands_gets_the_line_to_paste(base, override, line):
    assert message(base, override).splitlines()[0].endswith(line)


@pytest.mark.parametrize("override", ["aopsd.weighting.name=uniform", "aopsd.scoring.kind=sampler"])
def test_a_block_where_a_value_stands_gets_the_line_to_paste(base, override):
    key, _, value = override.partition("=")
    assert f" Set {key.rpartition('.')[0]}={value}." in message(base, override)
    assert " Set " not in message(base, override + "x").splitlines()[0]


@pytest.mark.parametrize("key", ["data.validation", "data.validation.data_path", "data.validation.path"])
def test_validation_of_nemo_rl_is_told_where_held_out_problems_go(base, key):
    text = message(base, f"{key}=x.jsonl")
    assert "aopsd.evaluation.data_path=FILE" in text and "data.train" not in text


# An override and what its message has, behind the override and its key.
REFUSED = {
    "aopsd.seed=abc": "must be a whole number; got",
    "aopsd.seed=1.5": "must be a whole number; got",
    "aopsd.seed=null": "must be a whole number; got",
    "aopsd.seed=${policy.model_name}": "must be a whole number; got",
    "aopsd.seed=${policy.modelname}": "has no value: Interpolation key 'policy.modelname'",
    "aopsd.mask_truncated=perhaps": "must be true or false; got",
    "aopsd.probes.threshold=[1]": "must be a finite number above 0; got",
    "aopsd.probes.threshold=.nan": "above 0; got nan",
    "aopsd.probes={threshold: x}": "threshold` must be a finite number above 0; got",
    "aopsd.probes.max_per_rollout=x": "must be null or a whole number",
    "aopsd.probes=3": "must be a block of keys: threshold, length",
    "aopsd.probes=null": "must be a block of keys",
    "aopsd.evaluation=null": "To evaluate nothing: aopsd.evaluation.data_path=null.",
    "aopsd.probes.keep_cache=true": "must be false with aopsd.engine=local, ",
    "aopsd.keep_optimizer_on_gpu=true": "must be false with aopsd.engine=local, ",
    "aopsd.scoring=prefill": "must be trainer or sampler with aopsd.engine=local, ",
    "aopsd.objective.name=opsd": "one of pg, sft, grpo, fkl, rkl, jsd, topk_fkl, dash, eopd, gkd, minillm",
    "aopsd.num_prompts_per_step=6": "multiple of 4",
    "aopsd.judge.max_new_tokens=1024": "must leave room for a prompt within",
    "aopsd.evaluation.temperature=0.001": "0 (greedy) or a number from 0.01 to 100; got 0.001",
    "aopsd=3": "must be a block",
    "policy=3": "must be a block",
    "policy.precision=float16": "must be one of float32, bfloat16",
    "policy.precision=null": "got None.",
    "policy.max_grad_norm=null": "got None.",
    "policy.train_micro_batch_size=null": "got None.",
    "policy.prefix_cache_gb=null": "got None.",
    "policy.logprob_batch_size=2.5": "at least 1; got 2.5",
    "policy.optimizer.name=null": "got None.",
    "policy.optimizer.name=5": "must be a name or a path; got 5",
    "policy.optimizer.kwargs.betas=[0.9]": "2 numbers from 0 to below 1",
    "policy.optimizer.kwargs.weight_decay=null": "got None.",
    "policy.optimizer.kwargs.lr=.inf": "finite number of at least 0; got inf",
    "policy.optimizer.kwargs.lr='1e-6'": "finite number of at least 0; got '1e-6'",
    "policy.optimizer.kwargs.eps=1e300": "finite number above 0; got 1e+300",
    "policy.generation.max_new_tokens=1016": "must leave room for a prompt and aopsd.probes.length=8 within",
    "policy.generation.temperature=0": "never greedily",
    "policy.generation.temperature=1e-300": "from 0.01 to 100; got 1e-300",
    "policy.generation.top_p=0.95": "of exactly 1; got 0.95",
    "policy.generation.top_k=20": "must be null or one of -1, 0; got 20",
    "aopsd.judge.kind=both": "must be one of list, log_odds, evidence, or FILE.py:CLASS; got 'both'",
    "aopsd.teacher.weights=online": "one of frozen, ema, live; got 'online'.",
    "aopsd.max_num_steps=-1": "got -1. null: epochs decide.",
    "aopsd.weighting=continuaton": "got 'continuaton'. Did you mean `continuation`?",
    "aopsd.judge.threshold=.inf": "finite",
    "aopsd.judge.threshold=null": "got None",
    "checkpointing.enabled=maybe": "true or false; got 'maybe'",
    "checkpointing.enabled=null": "got None.",
    "checkpointing.checkpoint_dir=null": "got None.",
    "checkpointing.save_period=null": "got None.",
    "checkpointing.keep_top_k=true": "at least 1; got True",
    'logger.log_dir="a\\0b"': "must be a name or a path",
    "+policy.model_name.x=1": "must be a name or a path",
}


@pytest.mark.parametrize("override", REFUSED)
def test_values_that_cannot_work(base, override):
    key = override.lstrip("+").split("=")[0].removesuffix(".x")
    text = message(base, override)
    assert text.startswith(f"override `{override}`: `{key}") and REFUSED[override] in text


@pytest.mark.parametrize("override", ["aopsd.teacher.weights=online", "policy.optimizer.kwargs.lr=1e-5x"])
def test_a_word_that_means_nothing_here_gets_no_hint_and_no_reason(base, override):
    assert message(base, override).endswith(f"; got '{override.partition('=')[2]}'.")


def bounds():
    """(key, a value just outside, the bound) of every key with a range, from what pydantic makes of the schema."""
    beyond = {
        "minimum": lambda bound: bound - 1,
        "maximum": lambda bound: bound + 1,
        "exclusiveMinimum": lambda bound: bound,
        "exclusiveMaximum": lambda bound: bound,
    }
    schema = adapter(RunKeys).json_schema()
    for key, _ in keys_of(RunKeys):
        _, leaf = property_of(schema, key.split("."))
        for part in leaf.get("anyOf", [leaf]):
            yield from ((key, outside(part[kind]), part[kind]) for kind, outside in beyond.items() if kind in part)


BOUNDS = list(bounds())


def test_most_numbers_have_a_range():
    assert len({key for key, _, _ in BOUNDS}) >= 40
    assert {("aopsd.probes.length", 1, 2), ("aopsd.curriculum.ema", 2, 1), ("aopsd.objective.jsd_beta", 1, 1)} <= {
        *BOUNDS
    }


@pytest.mark.parametrize(("key", "value", "bound"), BOUNDS)
def test_a_number_outside_its_range_is_refused_with_key_and_bound(base, key, value, bound):
    text = message(base, f"{key}={value}")
    where, _, expected = text.partition(f"`{key}` must be ")
    assert where == f"override `{key}={value}`: "
    told, _, rest = expected.partition("; got ")
    assert rest.startswith(f"{value!r}")
    assert bound == SINGLE_PRECISION or re.search(rf"(?<![\d.]){re.escape(f'{bound:g}')}(?![\d.])", told)


@pytest.mark.parametrize("key", flatten(asdict(AOPSDConfig())))
def test_every_key_of_our_block_is_checked(base, key):
    text = message(base, f"aopsd.{key}=[[]]")
    assert text.startswith(f"override `aopsd.{key}=[[]]`: `aopsd.{key}` must be ") and "; got [[]]." in text


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        ("fkl", "aopsd.weighting", "must be uniform with aopsd.objective.name=fkl; got 'continuation'"),
        ("eopd", "aopsd.weighting", "Only the objective pg weighs the gaps"),
        ("grpo aopsd.weighting=uniform", "aopsd.num_generations_per_prompt", "at least 2 with .* got 1. 8 is usual"),
        ("pg aopsd.objective.reward=added", "aopsd.num_generations_per_prompt", "2 with aopsd.objective.reward=added,"),
        ("dash aopsd.weighting=uniform aopsd.engine=nemo_rl", "aopsd.objective.support", "a number K .* got None"),
        ("rkl aopsd.weighting=uniform aopsd.engine=nemo_rl", "aopsd.objective.name", "pg, topk_fkl, fkl or dash with"),
        ("sft aopsd.weighting=uniform aopsd.engine=nemo_rl", "aopsd.objective.name", "examples/run_sft.py"),
    ],
)
def test_settings_that_the_objective_cannot_have(base, overrides, key, expected):
    text = message(base, *f"aopsd.objective.name={overrides}".split())
    assert f"`{key}`" in text and re.search(expected, text)


def test_vllm_may_keep_its_cache(base):
    assert load_config(base, ["aopsd.engine=nemo_rl", "aopsd.probes.keep_cache=true"]).aopsd.probes.keep_cache


@pytest.mark.parametrize("name", ["rkl", "jsd"])  # the others have a method's config
def test_an_objective_without_a_method_has_settings_that_pass(base, name):
    assert load_config(base, [f"aopsd.objective.name={name}", "aopsd.weighting=uniform"]).aopsd.objective.name == name


def test_null_where_it_means_something(base):
    aopsd = load_config(base, ["aopsd.max_num_steps=null", "aopsd.probes.max_per_rollout=null"]).aopsd
    assert aopsd.max_num_steps is None and aopsd.probes.max_per_rollout is None
    load_config(base, ["policy.tokenizer.name=null", "policy.generation.top_k=null"])


BLOCKS = ["policy.optimizer=5", "policy.optimizer.kwargs=[1]", "+policy.tokenizer=foo", "policy.generation=[1]"]


@pytest.mark.parametrize("override", [*BLOCKS, "data.train=[1]"])
def test_a_block_is_a_block(write, base, override):
    key, value = override.lstrip("+").split("=")
    expected = f"`{key}` must be a block of `key: value` lines"
    assert message(base, override).startswith(f"override `{override}`: {expected}")
    nested = f"defaults: base.yaml\n\n{key.replace('.', ': {')}: {value}" + "}" * key.count(".")
    path = write(nested)
    assert message(path).startswith(f"{path}:3: {expected}")


def test_lists_and_blocks_do_not_mix_in_blocks_of_others(write):
    write(BASE + "env: {a: {b: 1}, c: [1]}\n", "base.yaml")
    path = write("defaults: base.yaml\nenv:\n  a: [1]\n")
    assert message(path).startswith(f"{path}:3: `env.a` must be a block")
    path = write("defaults: base.yaml\nenv:\n  c: {d: 1}\n")
    assert message(path).startswith(f"{path}:3: `env.c` must be a list")


def test_probes_must_fit_only_where_there_are_any(base):
    text = message(base, "aopsd.probes.length=1024", "policy.generation.max_new_tokens=8")
    assert "`aopsd.probes.length` must leave room for a prompt within" in text
    load_config(base, ["aopsd.weighting=uniform", "policy.generation.max_new_tokens=1023", "aopsd.probes.length=9999"])
    load_config(base, ["policy.generation.max_new_tokens=1015"])


def test_a_default_at_fault_is_not_told_at_a_line_that_the_user_wrote(write):
    path = write(BASE + "aopsd: {evaluation: {num_samples: 2}}\n")
    text = message(path, "policy.max_total_sequence_length=512", "aopsd.evaluation.num_samples=3")
    assert text.startswith(f"{path}: the default of `aopsd.judge.max_new_tokens` must leave room")


def test_what_cannot_be_resolved_is_the_key_that_was_written(base):
    override = "logger.log_dir=runs/${x}"
    assert message(base, override).startswith(f"override `{override}`: `logger.log_dir` has no value")
    assert "has no value" in message(base, "+env.a=${env.b}", "+env.b=${env.a}")
    assert "has no value" in message(base, "+env.a=[1, '${x}']")


def test_settings_that_are_fine_at_their_limit(base):
    load_config(base, ["policy.generation.top_k=-1", "policy.generation.top_p=1.0", "aopsd.curriculum.ema=0"])
    load_config(base, ["aopsd.num_prompts_per_step=6", "aopsd.curriculum.name=shuffle", "aopsd.curriculum.ema=1"])
    load_config(base, ["aopsd.probes.length=2", "aopsd.judge.num_retries=0", "policy.generation.max_new_tokens=255"])
    load_config(base, ["aopsd.judge.kind=log_odds", "aopsd.judge.max_new_tokens=1024"])  # it writes nothing


def test_all_wrong_values_are_told_at_once(base):
    text = message(base, "aopsd.probes.threshold=0", "aopsd.curriculum.ema=2")
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    "key",
    [
        *("policy.model_name", "policy.max_total_sequence_length", "policy.generation.max_new_tokens"),
        *("data.train.data_path", "logger.log_dir"),
    ],
)
@pytest.mark.parametrize("value", ["null", "", "'???'", "${oc.env:NOT_SET_ANYWHERE,null}"])
def test_what_must_be_set(write, key, value):
    leaf = key.rpartition(".")[2]
    lines = [f"{line.split(':')[0]}: {value}" if line.strip().startswith(leaf) else line for line in BASE.splitlines()]
    path = write("\n".join(lines))
    text = message(path)
    told = f"{path}: {key} must be set. Add to the file, or pass {key}=VALUE."
    assert text == told
    beside = message(path, "aopsd.probes.lenth=3").splitlines()  # which needs nothing of what is missing
    assert beside[0] == told and beside[1].startswith("override `aopsd.probes.lenth=3`: unknown key")


def test_broken_files(write, tmp_path):
    path = write("policy:\n  a: 1\n b: 2\n")
    assert message(path).startswith(f"{path}:3: broken YAML")
    path = write(b"policy:\n  name: caf\xe9\n")
    assert message(path) == f"{path}:2: byte 11 of the line is not UTF-8. Save the file as UTF-8."
    path = write("- a\n- b\n")
    assert message(path).startswith(f"{path}: expected `key: value` lines")
    path = write("policy: {a: 1}\npolicy: {b: 1}\n")
    assert message(path).startswith(f"{path}:2: broken YAML")
    path = write("policy: {a: '${'}\n")
    assert message(path).startswith(f"{path}: broken YAML")
    for value in ("1" * 5000, "!!bool x"):
        path = write(f"policy: {{a: {value}}}\n")
        assert message(path).startswith(f"{path}: broken YAML")
    assert "must be set" in message(write(""))
    assert "no such config file" in message(tmp_path / "nowhere.yaml")
    assert "is a folder. Expected a YAML file" in message(tmp_path)


@pytest.mark.parametrize("key", ["5", "0x5", "true", "1.5", "'a.b'"])
def test_keys_that_are_no_names(write, key):
    path = write(BASE + f"aopsd:\n  {key}: 3\n")
    text = message(path)
    assert text.startswith(f"{path}:1") and "unknown key `aopsd." in text
    path = write(BASE + f"{key}: 3\n")
    assert message(path).startswith(f"{path}") and "unknown block" in message(path)


def test_yaml_that_is_too_deep_or_stands_inside_itself(write, base):
    for text in (f"env: {'[' * 1000}{']' * 1000}", "env: &a\n  x: *a"):
        path = write(f"{BASE}{text}\n")
        assert re.match(rf"{re.escape(str(path))}(:11)?: broken YAML: ", message(path))
    assert "cannot read the value" in message(base, f"+env.x={'[' * 1000}{']' * 1000}")


def test_parents_that_have_no_value(write):
    path = write("\ndefaults: ${oc.env:NOT_SET_ANYWHERE}\n")
    assert message(path).startswith(f"{path}:2: `defaults` has no value: ") and "NOT_SET_ANYWHERE" in message(path)
    path = write("defaults: ['${oc.env:NOT_SET_ANYWHERE}']\n")
    assert message(path).startswith(f"{path}:1: `defaults` has no value")
    assert "must be a file name or a list" in message(write("defaults: [5]\n"))


def test_broken_inheritance(write):
    path = write("aopsd: {}\ndefaults: gone.yaml\n")
    text = message(path)
    assert text.startswith(f"{path}:2: `defaults` names gone.yaml") and "relative to the file" in text
    assert "must be a file name or a list" in message(write("defaults: {a: b}\n"))
    write("defaults: b.yaml\n", "a.yaml")
    path = write("defaults: [a.yaml]\n", "b.yaml")
    assert "go in a circle" in message(path)


def test_two_parents_may_share_one(write):
    write(BASE, "base.yaml")
    write("defaults: base.yaml\n", "a.yaml")
    write("defaults: base.yaml\naopsd: {seed: 4}\n", "b.yaml")
    assert load_config(write("defaults: [a.yaml, b.yaml]\n")).aopsd.seed == 4
