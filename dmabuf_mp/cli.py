"""The command line: arguments in, exit code out. What commands do is done elsewhere, and imported late."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

from dmabuf_mp import __version__
from dmabuf_mp.arguments import Duration, Mapping
from dmabuf_mp.errors import ScenarioError, UsageError
from dmabuf_mp.reports.streams import PROGRAM, StdoutError, complain, say, say_json, stdout_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from dmabuf_mp.model import Json, Observer, Report, RunSettings, Scenario

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
EXAMPLES = """\b
Examples:
  dmabuf-mp run scenarios/
  dmabuf-mp run --map 'cuda:*=cpu' --json report.json scenarios/cross_gpu.yaml
  dmabuf-mp explain -k 'memfd and not relay' scenarios/

\b
Exit codes of run: 0 passed, 1 something failed, 2 usage or scenario error,
77 nothing ran to a verdict, 130 and 143 interrupted."""


def _load(paths: Sequence[str]) -> tuple[Scenario, ...]:
    from dmabuf_mp import scenario

    return scenario.load(paths)


def _schema() -> dict[str, Json]:
    from dmabuf_mp import scenario

    return scenario.schema()


class Runner(Protocol):
    """What runs scenarios."""

    def run(self, scenarios: Sequence[Scenario], observer: Observer) -> Report:
        """Run them in order."""


@contextlib.contextmanager
def _start(paths: Sequence[str], settings: RunSettings) -> Iterator[Runner]:
    """Start the orchestrator, and the drivers that the files will want, while those are still unread."""
    from dmabuf_mp import hints
    from dmabuf_mp.orchestrator import Orchestrator

    with Orchestrator(settings) as orchestrator:
        for prefix in hints.drivers(paths) if not settings.mapping else ():
            orchestrator.warm(prefix, 2)
        yield orchestrator


def _explain(scenarios: tuple[Scenario, ...], settings: RunSettings) -> list[dict[str, Json]]:
    from dmabuf_mp import inventory

    return inventory.explain(scenarios, settings)


def _devices() -> dict[str, Json]:
    from dmabuf_mp import inventory

    return inventory.devices()


def _check_roles(scenarios: tuple[Scenario, ...]) -> None:
    if any(role.function is not None for scenario in scenarios for role in scenario.roles):
        from dmabuf_mp import inventory

        inventory.check_roles(scenarios)


@dataclass(frozen=True, slots=True)
class Services:
    """What the commands call; each imports what it needs when it is first called."""

    load: Callable[[Sequence[str]], tuple[Scenario, ...]] = _load
    check_roles: Callable[[tuple[Scenario, ...]], None] = _check_roles
    schema: Callable[[], dict[str, Json]] = _schema
    start: Callable[[Sequence[str], RunSettings], AbstractContextManager[Runner]] = _start
    explain: Callable[[tuple[Scenario, ...], RunSettings], list[dict[str, Json]]] = _explain
    devices: Callable[[], dict[str, Json]] = _devices


@dataclass(frozen=True, slots=True)
class Invocation:
    """One command line as given, and what its command may call."""

    arguments: tuple[str, ...]
    services: Services


def run_command(arguments: Sequence[str], services: Services | None = None) -> int:
    """Run one command line and return its exit code; every mistake in it is told on standard error."""
    try:
        invocation = Invocation(tuple(arguments), services or Services())
        code = main.main([*arguments], PROGRAM, standalone_mode=False, obj=invocation)
        return code if isinstance(code, int) else 0
    except ScenarioError as error:
        for problem in error.problems:
            complain(str(problem), prefix="")
        return EXIT_USAGE
    except UsageError as error:
        complain(str(error))
        return EXIT_USAGE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        complain(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx:
            complain(f"'{error.ctx.command_path} --help' tells more", prefix="")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except StdoutError as error:
        return stdout_lost(error.cause)


FILE = click.Path(allow_dash=True)
paths_argument = click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=FILE)
select_option = click.option(
    "-k", "--select", metavar="EXPR", help="Only scenarios whose name matches: words, and, or, not."
)
mapping_option = click.option(
    "--map",
    "mapping",
    type=Mapping(),
    metavar="FROM=TO",
    multiple=True,
    help="Put one device in another's place, as in 'cuda:*=cpu'. May be given again.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _show_help(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        say(ctx.get_help())
        ctx.exit()


help_option = click.help_option("-h", "--help", callback=_show_help)


@click.group(epilog=EXAMPLES, context_settings={"max_content_width": 100})
@help_option
@click.version_option(__version__, "-V", "--version", message="dmabuf-mp %(version)s")
def main() -> None:
    """Share one buffer between processes and devices; check the data.

    PATH is a scenario file, a folder of them, or - for standard input.
    """


@main.command()
@paths_argument
@click.option("--json", "json_", type=FILE, metavar="FILE", help="Report as JSON; - for standard output.")
@click.option("--junit", type=FILE, metavar="FILE", help="Report as JUnit XML.")
@click.option("--log", type=FILE, metavar="FILE", help="Workers' logs as JSON lines.")
@select_option
@mapping_option
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", default=1, help="Run everything N times.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    metavar="N",
    help="Repeat the patterns of the run that had it.",
)
@click.option("--timeout", type=Duration(), help="Deadline of each scenario: 500ms, 30s, 5m.")
@click.option("--duration", type=Duration(), help="Repeat everything for that long: 10m.")
@click.option("--until-fail", is_flag=True, help="Repeat everything until something fails.")
@click.option("--shuffle", is_flag=True, help="Another order in each repetition, by the seed.")
@click.option("--fresh", is_flag=True, help="Fork new workers for every scenario.")
@click.option("--strict", is_flag=True, help="A skip counts as a failure.")
@click.option("--skips-ok", is_flag=True, help="Exit with 0, not 77, where everything was skipped.")
@click.option("--fail-fast", is_flag=True, help="Stop after the first scenario that does not pass.")
@click.option("--dump", is_flag=True, help="Show wrong data in hex, beside what was due.")
@click.option("-v", "--verbose", count=True, help="Show all logs; twice: debugging ones too.")
@click.option("-q", "--quiet", is_flag=True, help="Show only what failed, and the verdict.")
@help_option
@click.pass_obj
def run(
    invocation: Invocation,
    *,
    paths: tuple[str, ...],
    json_: str | None,
    junit: str | None,
    log: str | None,
    select: str | None,
    mapping: tuple[tuple[str, str], ...],
    repeat: int,
    seed: int | None,
    timeout: float | None,
    duration: float | None,
    until_fail: bool,
    shuffle: bool,
    fresh: bool,
    strict: bool,
    skips_ok: bool,
    fail_fast: bool,
    dump: bool,
    verbose: int,
    quiet: bool,
) -> int:
    """Run scenarios in order and judge them."""
    _exclude("--strict", strict, "--skips-ok", skips_ok)
    _exclude("--quiet", quiet, "--verbose", verbose > 0)
    from dmabuf_mp.model import RunSettings
    from dmabuf_mp.reports.output import Output, Targets

    targets = Targets(json=json_, junit=junit, log=log)
    targets.validate()
    run_seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    settings = RunSettings(
        seed=run_seed,
        repeat=repeat,
        mapping=mapping,
        fresh=fresh,
        strict=strict,
        skips_ok=skips_ok,
        fail_fast=fail_fast,
        timeout_s=timeout,
        duration_s=duration,
        until_fail=until_fail,
        shuffle=shuffle,
    )
    replay = () if seed is not None else ("--seed", str(run_seed))
    command = shlex.join([PROGRAM, *invocation.arguments, *replay])
    with contextlib.ExitStack() as undo:
        with invocation.services.start(paths, settings) as runner:
            scenarios = invocation.services.load(paths)
            selected = _select(scenarios, select)
            verbosity = -1 if quiet else verbose
            output = undo.enter_context(
                Output(targets, verbosity=verbosity, repeat_command=command, dump=dump)
            )
            output.say(f"{_count(len(selected), 'scenario')}, seed {run_seed}")
            if not selected:
                complain(f"no name matches -k {select!r}; there are: {_names(scenarios)}")
            report = runner.run(selected, output)
        return output.finish(report)


@main.command()
@paths_argument
@help_option
@click.pass_obj
def check(invocation: Invocation, paths: tuple[str, ...]) -> None:
    """Check scenario files for mistakes; touch no device."""
    scenarios = invocation.services.load(paths)
    invocation.services.check_roles(scenarios)
    files = len({scenario.file for scenario in scenarios})
    say(f"{_count(len(scenarios), 'scenario')} in {_count(files, 'file')}: no mistakes")


@main.command("list")
@paths_argument
@select_option
@json_option
@help_option
@click.pass_obj
def list_(invocation: Invocation, paths: tuple[str, ...], select: str | None, as_json: bool) -> None:
    """List what would run, after expansion."""
    from dmabuf_mp.reports import plain

    scenarios = _select(invocation.services.load(paths), select)
    entries = [plain.entry(scenario) for scenario in scenarios]
    say_json(entries) if as_json else say(plain.rows(entries))


@main.command()
@paths_argument
@select_option
@mapping_option
@json_option
@help_option
@click.pass_obj
def explain(
    invocation: Invocation,
    paths: tuple[str, ...],
    select: str | None,
    mapping: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Tell which path each scenario would take, or why none."""
    from dmabuf_mp.model import RunSettings
    from dmabuf_mp.reports import plain

    scenarios = _select(invocation.services.load(paths), select)
    entries = invocation.services.explain(scenarios, RunSettings(seed=0, mapping=mapping))
    say_json(entries) if as_json else say(plain.rows(entries))


@main.command()
@json_option
@help_option
@click.pass_obj
def devices(invocation: Invocation, as_json: bool) -> None:
    """Show this machine's devices, and each path probed by doing."""
    from dmabuf_mp.reports import plain

    found = invocation.services.devices()
    say_json(found) if as_json else say(plain.tree(found))


@main.command()
@click.option("--json", "json_", type=FILE, metavar="FILE", help="Report as JSON; - for standard output.")
@click.option("--junit", type=FILE, metavar="FILE", help="Report as JUnit XML.")
@select_option
@click.option("--every-phase", is_flag=True, help="Let each fault strike in every phase: some minutes.")
@help_option
def selftest(json_: str | None, junit: str | None, select: str | None, every_phase: bool) -> int:
    """Inject each known fault, and show that it is caught."""
    from dmabuf_mp import selftest as faults
    from dmabuf_mp.reports.output import Output, Targets

    targets = Targets(json=json_, junit=junit)
    targets.validate()
    began = time.monotonic()
    results = []

    def show(line: str) -> None:
        complain(line, prefix="") if targets.take_stdout else say(line)

    with Output(targets, verbosity=-1) as output:
        for ground in faults.grounds():
            cases = faults.cases(ground, every_phase=every_phase)
            wanted = {scenario.name for scenario in _select(tuple(c.scenario for c in cases), select)}
            show(f"{ground}:")
            for result in faults.run([case for case in cases if case.scenario.name in wanted]):
                results.append(result)
                show(faults.line(result))
        return output.finish(faults.report_on(results, time.monotonic() - began))


@main.command()
@help_option
@click.pass_obj
def schema(invocation: Invocation) -> None:
    """Print the JSON Schema of a scenario file, for editors."""
    say_json(invocation.services.schema())


def _exclude(one: str, one_given: bool, other: str, other_given: bool) -> None:
    if one_given and other_given:
        raise UsageError(f"{one} and {other} contradict each other: give one of them")


def _select(scenarios: tuple[Scenario, ...], expression: str | None) -> tuple[Scenario, ...]:
    if expression is None:
        return scenarios
    from dmabuf_mp.select import selector

    matches = selector(expression)
    return tuple(scenario for scenario in scenarios if matches(scenario.name))


def _names(scenarios: Iterable[Scenario]) -> str:
    return ", ".join(dict.fromkeys(scenario.name for scenario in scenarios))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
