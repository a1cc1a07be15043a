"""The one error that a user can mend: bad input, a bad setting, a broken file. The CLI prints it and exits with 2."""


class UserError(ValueError):
    """The message says what was found, what was expected, where, and what to do."""
