"""The library of mods, the cache, and what was found on this machine."""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _core
from .kernel import compile_options


class Mod(NamedTuple):
    name: str
    group: str
    page: str
    summary: str
    text: str
    also_called: Tuple[str, ...]


class Finding(NamedTuple):
    what: str
    found: bool
    detail: str
    remedy: str


class _Library:
    """The mods that flexc ships, by name: flexc.library['alibi'].text."""

    def __iter__(self) -> Iterator[str]:
        return iter([entry["name"] for entry in _core.library()])

    def __len__(self) -> int:
        return len(_core.library())

    def __getitem__(self, name: str) -> Mod:
        """By its name, or by what others call it. The error has the name that is nearest."""
        return Mod(**_core.library_mod(name))

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def values(self) -> List[Mod]:
        return [Mod(**entry) for entry in _core.library()]

    def __repr__(self):
        return "\n".join(f"{mod.name:28} {mod.summary}" for mod in self.values())


class _Cache:
    """The kernels that are kept: flexc.cache.statistics(), flexc.cache.clear()."""

    def statistics(self, **options: Any) -> Dict[str, Any]:
        return _core.cache(compile_options(**options))

    @property
    def directory(self) -> Optional[str]:
        """None where the cache on disk is off."""
        return self.statistics()["directory"]

    def clear(self, **options: Any) -> None:
        _core.clear_cache(compile_options(**options))

    def __repr__(self):
        return f"<flexc.cache {self.statistics()}>"


class Findings(List[Finding]):
    def __repr__(self):
        return "\n".join(f"{'yes' if f.found else 'no ':3} {f.what}: {f.detail}" +
                         (f"\n    {f.remedy}" if f.remedy else "") for f in self)


def doctor() -> Findings:
    """What flexc found: the driver, NVRTC, the CPU backend, GPUs; and how to get what is missing."""
    return Findings(Finding(*finding) for finding in _core.doctor())


library = _Library()
cache = _Cache()
