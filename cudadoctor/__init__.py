"""cudadoctor: find out why PyTorch does not use your NVIDIA GPU, and fix it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudadoctor.library import Report, check, explain
    from cudadoctor.needs import RequirementError, require

__version__ = "0.1.0"
__all__ = ["Report", "RequirementError", "check", "explain", "require"]


def __getattr__(name: str) -> object:
    """The library, loaded when it is first used: the commands import this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("RequirementError", "require"):
        from cudadoctor import needs

        return getattr(needs, name)
    from cudadoctor import library

    return getattr(library, name)
