"""The method from Python, on the built-in model and a CPU: python examples/python_api.py [RUN FOLDER]"""

import sys
from pathlib import Path

import nemo_aopsd
from nemo_aopsd.config.load import to_yaml
from nemo_aopsd.config.shipped import find_recipe
from nemo_aopsd.engines import local
from nemo_aopsd.method.objectives import build_objective
from nemo_aopsd.run.trainer import train


def main(run: Path) -> None:
    if run.exists():
        sys.exit(f"{run} exists: delete it, or name another folder: python examples/python_api.py FOLDER")
    small = ["aopsd.num_prompts_per_step=4", "aopsd.max_num_epochs=1", "aopsd.curriculum.num_initial_attempts=1"]
    config = nemo_aopsd.load_config(find_recipe(Path("demo")), [f"logger.log_dir={run}", *small])
    problems = nemo_aopsd.load_problems(config.data["train"]["data_path"])[:4]

    # One step by itself: the student answers 4 problems and learns from them.
    engine = local.build(config)
    objective = build_objective(config.aopsd.objective)
    result = nemo_aopsd.train_step(problems, engine, objective, config, donors={}, seed=0)
    for row in result.scored:
        print(f"{row.draft.problem.id}: progress {row.draft.progress}, {len(row.probes)} probes")
    print(f"loss {result.train_metrics['train/loss']:.4f}")

    # A run: an epoch, here of one step, in the order of the curriculum, with everything kept in a folder.
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    train(config, problems, None, local.build(config), run, resume=False)

    done = nemo_aopsd.load_run(run)
    for step in done.metrics:
        print(f"step {step.step}: {step.number('time/step'):.1f} s, |gap| {step.get('gap/mean_abs')}")
    for rollout in done.rollouts(last_step=1):
        print(f"{rollout.problem_id}: reached {rollout.reached}: {rollout.response_text[:60]!r}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/python_api"))
