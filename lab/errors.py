"""Errors that a user can correct."""


class UserError(Exception):
    """A mistake in a flag or a file; the message names it and says what to do."""


def require(*checks):
    """Raise UserError with the messages of all checks, (condition, message), that do not hold."""
    messages = [message for holds, message in checks if not holds]
    if messages:
        raise UserError("; ".join(messages))
