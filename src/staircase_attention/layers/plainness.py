"""Whether modules are what they were built as, so that code which reads their weights may."""

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def are_untouched(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module and all in it are of these very kinds, and nobody is hooked in.

    A hook, a wrapper with an adapter in it, or a parametrised weight is the user's wish, and only
    a call of the module itself honours it.
    """
    return all(
        type(one) in kinds and not any(getattr(one, name) for name in HOOKS)
        for one in module.modules()
    )
