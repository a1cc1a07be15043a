"""The `aopsd` command: one file per group of commands, composed in `app.py`."""


def main() -> None:
    """Run the command line; exit code 2 and one message for what a user can fix."""
    from nemo_aopsd.cli.app import run

    run()
