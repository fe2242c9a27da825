"""cudadoctor: find out why PyTorch does not use your NVIDIA GPU, and fix it."""

TYPE_CHECKING = False  # typing may be a file of the current folder until the path is settled
if TYPE_CHECKING:
    from cudadoctor.library import Report, check, explain
    from cudadoctor.needs import RequirementError, require

__version__ = "0.1.0"
__all__ = ["Report", "RequirementError", "check", "explain", "require"]


def __getattr__(name: str) -> object:
    """The library, loaded when it is first used: the commands import this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    of_gate = name in ("RequirementError", "require")
    return getattr(import_module(f"{__name__}.{'needs' if of_gate else 'library'}"), name)
