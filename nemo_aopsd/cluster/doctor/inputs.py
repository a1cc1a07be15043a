"""The config's problems, as `aopsd train --check` looks at them."""

from __future__ import annotations

from nemo_aopsd.cluster.doctor.result import ERROR, OK, Check
from nemo_aopsd.config.schema import Config
from nemo_aopsd.errors import UserError
from nemo_aopsd.run.preflight import check_inputs


def check_data(config: Config) -> Check:
    expected = "problems that this config can train on"
    try:
        problems, held_out = check_inputs(config)
    except (UserError, OSError) as error:
        remedy = "Mend what is named, or run this where the data is; aopsd train --check says when it is right"
        return Check("problems", ERROR, str(error), expected, remedy)
    evaluation = f"{len(held_out)} held out, {config.aopsd.evaluation.data_path}" if held_out else "none held out"
    return Check("problems", OK, f"{len(problems)}, {config.data['train']['data_path']}; {evaluation}", expected)
