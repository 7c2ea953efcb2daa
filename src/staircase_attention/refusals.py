"""What a refusal is, in whichever room it is said."""


class RefusedError(ValueError):
    """Something that a user can get wrong, said in full, and that would go wrong again."""
