"""A short config, and the message about one that is refused."""

import pytest

from nemo_aopsd.config.load import load_config
from nemo_aopsd.errors import UserError

BASE = """\
policy:
  model_name: models/tiny
  max_total_sequence_length: 1024
  generation:
    max_new_tokens: 64
data:
  train:
    data_path: problems.jsonl
logger:
  log_dir: runs/x
"""


def message(path, *overrides):
    with pytest.raises(UserError) as error:
        load_config(path, overrides)
    return str(error.value)
