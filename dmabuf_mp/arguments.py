"""The kinds of argument that the command line takes besides words and numbers."""

from __future__ import annotations

from fnmatch import fnmatchcase

import click


class Duration(click.ParamType[float]):
    """A duration such as 500ms or 30s, in seconds."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse it, or say what would be right."""
        from dmabuf_mp.sizes import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Mapping(click.ParamType[tuple[str, str]]):
    """A pair of devices such as cuda:*=cpu."""

    name = "from=to"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split and validate it, or say what would be right."""
        from dmabuf_mp import backends

        wanted, equals, target = value.partition("=")
        prefix = wanted.partition(":")[0]
        if not equals or not any(fnmatchcase(known, prefix) for known in backends.paths()):
            expected = f"expected FROM=TO, as in 'cuda:*=cpu'; devices are {_devices_help()}"
            self.fail(f"{value!r}: {expected}", param, ctx)
        static = backends.paths().get(target.partition(":")[0])
        problem = (
            static.selector_error(target)
            if static
            else f"unknown device {target!r}: expected {_devices_help()}"
        )
        if problem or "*" in target:
            self.fail(f"{value!r}: {problem or 'TO must name one device, not *'}", param, ctx)
        return wanted, target


def _devices_help() -> str:
    from dmabuf_mp import backends

    return ", ".join(static.selector_help for static in backends.paths().values())
