"""The `aopsd` command: a file a group of commands, composed in `app.py`."""


def main() -> None:
    """Run the command line; exit code 2 and one message for what a user can mend."""
    from nemo_aopsd.cli.app import run

    run()
