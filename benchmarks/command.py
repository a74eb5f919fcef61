"""The command line of the benchmarks: `scripts/bench SCENARIO… [--rivals]`."""

import argparse
import dataclasses
import datetime
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import rivals
from benchmarks.bench import Bench
from benchmarks.machine import ROOT
from benchmarks.macro.scenarios import SCENARIOS
from benchmarks.measure import Result, clear_progress, measure, progress_line
from benchmarks.report import as_json, table, write_json
from benchmarks.rivals import environment
from benchmarks.scenario import Contestant, MissingError, Scenario

RESULTS = ROOT / ".bench"
RIVALS_ENVIRONMENT = RESULTS / "rivals"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the scenarios named, print a table for each and write its JSON; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    if options.setup_rivals:
        failed = environment.set_up(RIVALS_ENVIRONMENT)
        print(f"the rivals' environment is {RIVALS_ENVIRONMENT}" + "".join(f"\nnot installed: {one}" for one in failed))
        if not options.scenarios:
            return 0
    if options.rivals or options.setup_rivals:
        environment.run_inside(RIVALS_ENVIRONMENT, [one for one in given if one != "--setup-rivals"])
    reports: list[dict[str, object]] = []
    for name in options.scenarios or SCENARIOS:
        started = datetime.datetime.now(datetime.UTC)
        try:
            scenario, results, missing = run(
                name,
                rounds=options.rounds,
                smoke=options.smoke,
                with_rivals=options.rivals,
                only=options.only,
                goals=options.goals,
            )
        except MissingError as error:
            print(f"{name}: {error}", end="\n\n", flush=True)
            continue
        clear_progress()
        print(table(scenario, results, missing), end="\n\n", flush=True)
        reports.append(as_json(scenario, results, started))
        if not options.smoke:
            write_json(RESULTS / f"{name}-{started:%Y-%m-%dT%H-%M-%SZ}.json", reports[-1])
    if options.json is not None:
        write_json(options.json, reports)
    return 0


def run(
    name: str,
    *,
    rounds: int | None,
    smoke: bool,
    with_rivals: bool,
    only: str | None = None,
    goals: bool = False,
) -> tuple[Scenario, tuple[Result, ...], tuple[str, ...]]:
    """Build and measure one scenario.

    Args:
        name: a key of `SCENARIOS`.
        rounds: how many rounds; the scenario's own number (or 1 in smoke mode) by default.
        smoke: try the code on tiny work.
        with_rivals: add the rivals that are installed.
        only: a part of the names of the contestants to measure; None for all.
        goals: measure only contestants that have goals, their limits, and the rivals of the same limits.

    Returns:
        The scenario, its results, and the names of rivals that are not installed.
    """
    found, missing = rivals.installed() if with_rivals else ({}, ())
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, ExitStack() as scope:

        def contestants(scenario: str, work: object) -> tuple[Contestant, ...]:
            made = [rival[scenario](work, scope) for rival in found.values() if scenario in rival]
            return tuple(contestant for group in made for contestant in group)

        scenario = SCENARIOS[name](Bench(Path(directory), scope, smoke, contestants))
        if only is not None:
            scenario = named(scenario, only)
        if goals:
            scenario = with_goals(scenario)
        if smoke:
            scenario = without_goals(scenario)
        count = rounds or (1 if smoke else scenario.rounds)
        return scenario, measure(scenario, rounds=count, smoke=smoke, progress=progress_line(name)), missing


def named(scenario: Scenario, text: str) -> Scenario:
    """Return the scenario with the contestants whose names contain a text, and those that they are compared with.

    Raises:
        SystemExit: if there is none.
    """
    chosen = {each.name for each in scenario.contestants if text.casefold() in each.name.casefold()}
    chosen |= {limit for each in scenario.contestants if each.name in chosen for limit in each.against}
    contestants = tuple(each for each in scenario.contestants if each.name in chosen)
    if not contestants:
        names = "\n".join(each.name for each in scenario.contestants)
        raise SystemExit(f"--only {text!r}: no contestant of {scenario.name} has this in its name. There are:\n{names}")
    return dataclasses.replace(scenario, contestants=contestants)


def with_goals(scenario: Scenario) -> Scenario:
    """Return the scenario with the contestants that have goals, their limits, and the rivals of the same limits.

    Raises:
        MissingError: if none has a goal.
    """
    judged = [each for each in scenario.contestants if each.goal is not None]
    limits = {limit for each in judged for limit in each.against}
    names = {each.name for each in judged} | limits
    names |= {each.name for each in scenario.contestants if each.role == "rival" and limits & {*each.against}}
    if not names:
        raise MissingError("no contestant has a goal; some of the rivals' contestants have, with --rivals")
    contestants = tuple(each for each in scenario.contestants if each.name in names)
    return dataclasses.replace(scenario, contestants=contestants, summary=None)


def without_goals(scenario: Scenario) -> Scenario:
    """Return the scenario without goals, for work that is too small to judge."""
    contestants = tuple(dataclasses.replace(contestant, goal=None) for contestant in scenario.contestants)
    return dataclasses.replace(scenario, contestants=contestants)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", choices=[*SCENARIOS, []], help=", ".join(SCENARIOS))
    parser.add_argument("--rivals", action="store_true", help="also measure other loaders that are installed")
    parser.add_argument("--setup-rivals", action="store_true", help="create the rivals' environment, .bench/rivals")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (7, for import 15)")
    parser.add_argument("--only", metavar="TEXT", help="only contestants with this in their names, and their limits")
    parser.add_argument("--goals", action="store_true", help="only contestants with goals, their limits and rivals")
    parser.add_argument("--smoke", action="store_true", help="tiny work, one round: tests the code, measures nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to FILE")
    return parser
