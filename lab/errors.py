"""Mistakes of the user."""


class UserError(Exception):
    """A mistake of whoever started the script; the message names the flag or file and the remedy."""


def require(*checks):
    """Each check is (holds, message); UserError with every message whose condition does not hold."""
    wrong = [message for holds, message in checks if not holds]
    if wrong:
        raise UserError("; ".join(wrong))
