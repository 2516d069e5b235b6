"""Pipelines from a TOML file: mirrors and the upkeep of their tables, checked as a whole before anything runs.

A file is one job, or a list of `[[job]]`. Every key is checked, with the nearest right one; paths are relative to the file.
"""

import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.given import meant
from antiphon.client.tls import OFF, ON
from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.query import MAX_OFFSETS_DEFAULT, TIMEOUT_MS_DEFAULT, MirrorQuery
from antiphon.lake.records import KEY_FORMATS, RowShape
from antiphon.lake.table_mirror import STARTS, mirror_table
from antiphon.lake.targets.kinds import OPTIONS, TargetKind, options_of
from antiphon.lake.targets.target import open_target, opened
from antiphon.lake.topic_mirror import mirror_topic
from antiphon.lake.upkeep import AGE_DEFAULT, TARGET_MB_DEFAULT, compact, expire, parse_age
from antiphon.lake.values.decoding import check_choice
from antiphon.lake.values.formats import FORMATS
from antiphon.lake.values.options import ValueOptions
from antiphon.lake.values.spec import fixed_columns, value_spec, with_rest
from antiphon.spark.option_values import parse_servers
from antiphon.spark.servers import SETTINGS, Servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: Final = ("mirror", "compact", "expire")
EVERY_DEFAULT: Final = {"mirror": "10 seconds", "compact": "1 hour", "expire": "1 day"}
LOOK_S: Final = 0.5

_ACCESS: Final[dict[str, tuple[type, ...]]] = dict.fromkeys((*SETTINGS, "password_file"), (str,))

# Section -> key -> types that its value may have.
_SECTIONS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "": {
        "name": (str,), "kind": (str,), "servers": (str,), **_ACCESS, "target_mb": (int,), "older_than": (str,),
    },
    "source": {
        "servers": (str,), **_ACCESS, "topic": (str,), "table": (str,), "starting": (str,), "start": (str,),
        "timeout_ms": (int,), "fail_on_data_loss": (bool,),
    },
    "value": {
        "format": (str,), "schema": (str,), "message": (str,), "framing": (str,), "writers": (dict,),
        "new_fields": (str,), "select": (str,), "where": (str,), "key": (str,), "headers": (bool,),
    },
    "target": OPTIONS,
    "dead_letters": {"topic": (str,)},
    "trigger": {"every": (str,), "max_offsets": (int,), "partitions": (int,), "checkpoint": (str,)},
}  # fmt: skip
_OF_MIRRORS: Final = ("source", "value", "dead_letters")


@dataclass(frozen=True)
class PipelineJob:
    """One job of a file, checked. `options` are those of the function that does it."""

    name: str
    kind: str
    target: dict[str, Any]
    source: str | None = None  # topic or table, of a mirror
    is_table: bool = False
    servers: str = ""
    every: str = ""
    options: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass
class Outcome:
    """What a job did."""

    job: str
    kind: str
    rows: int = 0
    files: int = 0
    dead_letters: int = 0
    epochs: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    problem: str | None = None  # why upkeep could not be done this time
    failure: str | None = None  # why it goes on no more, where the others do


Told = Callable[[Outcome], None]


# -- reading a file -------------------------------------------------------------------------------------------------


def read_pipeline(path: str | Path) -> list[PipelineJob]:
    """The jobs of a file. Raises InvalidRequestError that names the key, and the nearest right one."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"{path} is not TOML: {error}") from error
    base = Path(path).resolve().parent
    listed = found.pop("job", None)
    if listed is None:
        return [_job(found, "", {}, base)]
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise InvalidRequestError("jobs are written as [[job]], with two brackets each")
    rest = [name for name in found if name != "servers" and name not in _ACCESS]
    if rest:
        raise InvalidRequestError(
            f"{rest[0]} stands beside [[job]]: write it as [job.{rest[0]}] in one of them "
            "(only servers and how to get in are for all)"
        )
    _check_keys({name: found[name] for name in found}, "")
    jobs = [_job(one, f"job {number}: ", found, base) for number, one in enumerate(listed, 1)]
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequestError(f"two jobs are called {name}: give them a name each")
    return jobs


def _job(found: Mapping[str, Any], where: str, defaults: Mapping[str, Any], base: Path) -> PipelineJob:
    _check_keys(found, where)
    try:
        return _checked(found, defaults, base)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}{error.message}") from error


def _check_keys(found: Mapping[str, Any], where: str) -> None:
    sections = [name for name in _SECTIONS if name]
    for name, value in found.items():
        if name in _SECTIONS[""]:
            _check_type(value, _SECTIONS[""][name], f"{where}{name}")
        elif name not in sections:
            hint = meant(name, [*_SECTIONS[""], *sections])
            raise InvalidRequestError(f"{where}a pipeline has no key {name!r}; {hint}")
        elif not isinstance(value, dict):
            raise InvalidRequestError(f"{where}{name} is a section: write [{name}] on a line of its own")
        else:
            known = _SECTIONS[name]
            for key, item in value.items():
                if key not in known:
                    raise InvalidRequestError(f"{where}[{name}] has no key {key!r}; {meant(key, known)}")
                _check_type(item, known[key], f"{where}{name}.{key}")


def _check_type(value: Any, kinds: tuple[type, ...], where: str) -> None:
    if type(value) not in kinds:
        words = {
            str: "a text in quotes",
            int: "a whole number",
            bool: "true or false",
            dict: "a table",
            list: "a list",
        }
        raise InvalidRequestError(f"{where} has to be {words[kinds[0]]}, not {value!r}")


def _checked(found: Mapping[str, Any], defaults: Mapping[str, Any], base: Path) -> PipelineJob:
    kind = check_choice("kind", found.get("kind", "mirror"), KINDS)
    target = _target(found.get("target", {}), base)
    trigger = dict(found.get("trigger", {}))
    every = trigger.pop("every", EVERY_DEFAULT[kind])
    if parse_age(every).total_seconds() <= 0 and kind != "mirror":
        raise InvalidRequestError(f"trigger.every of {kind} has to be longer than 0 s")
    if kind == "mirror":
        return _mirror(found, defaults, target, trigger, every, base)
    for name in (*_OF_MIRRORS, *(f"trigger.{key}" for key in trigger)):
        if name in found or name.startswith("trigger."):
            raise InvalidRequestError(f"{name} is for kind = mirror, not for {kind}")
    options: dict[str, Any] = {}
    if kind == "compact":
        options["target_mb"] = found.get("target_mb", TARGET_MB_DEFAULT)
    else:
        options["older_than"] = found.get("older_than", AGE_DEFAULT)
        parse_age(options["older_than"])
    _refuse(found, "older_than" if kind == "compact" else "target_mb", kind)
    name = found.get("name") or f"{kind} {target['path'] if 'path' in target else target['table']}"
    return PipelineJob(name, kind, target, every=every, options=options)


def _refuse(found: Mapping[str, Any], name: str, kind: str) -> None:
    if name in found:
        raise InvalidRequestError(f"{name} is not for kind = {kind}")


def _target(found: Mapping[str, Any], base: Path) -> dict[str, Any]:
    if not found:
        raise InvalidRequestError("[target] is missing: kind, and path or table")
    target = dict(found)
    path = target.get("path", "")
    if path and "://" not in path and not path.startswith("~"):
        target["path"] = os.path.normpath(base / path)
    if isinstance(target.get("catalog"), dict):
        target["catalog"] = {name: str(value) for name, value in target["catalog"].items()}
    kind, options = options_of(target)
    if kind.has_tables:
        _check_table(kind, options)
    else:
        open_target(target)
    return target


def _check_table(kind: TargetKind, options: Mapping[str, Any]) -> None:
    """Without opening it, which would make its catalog."""
    if options.get("catalog"):
        return
    if not options.get("path") or "." not in str(options.get("table", "")):
        raise InvalidRequestError(
            f"a target of kind {kind.name} needs table = 'namespace.name', and a path, catalog = 'NAME' or [target.catalog]"
        )


def _mirror(
    found: Mapping[str, Any], defaults: Mapping[str, Any], target: dict[str, Any], trigger: dict[str, Any], every: str,
    base: Path,
) -> PipelineJob:  # fmt: skip
    for name in ("target_mb", "older_than"):
        _refuse(found, name, "mirror")
    source = dict(found.get("source", {}))
    topic, table = source.pop("topic", None), source.pop("table", None)
    if (topic is None) == (table is None):
        raise InvalidRequestError("[source] needs either topic or table")
    servers = source.pop("servers", None) or found.get("servers") or defaults.get("servers")
    if not servers:
        raise InvalidRequestError("servers is missing: native addresses, such as 127.0.0.1:7400")
    servers = _with_access(servers, [defaults, found, source], base)
    parse_servers(servers)
    is_table = table is not None
    for name, of_table in (("start", True), ("starting", False)):
        if name in source and of_table != is_table:
            raise InvalidRequestError(f"source.{name} is for a {'table' if of_table else 'topic'}")
    if is_table:
        check_choice("source.start", source.get("start", STARTS[0]), STARTS)
        options_of(target)[0].refuse_changes()
    value = _value(found.get("value", {}), base, is_table=is_table)
    for name, low in (("max_offsets", 1), ("partitions", 1)):
        if trigger.get(name, low) < low:
            raise InvalidRequestError(f"trigger.{name} has to be at least {low}")
    dead = found.get("dead_letters", {}).get("topic")
    if "dead_letters" in found and not dead:
        raise InvalidRequestError("[dead_letters] needs topic")
    if "checkpoint" in trigger and "://" not in trigger["checkpoint"]:
        trigger["checkpoint"] = str(base / trigger["checkpoint"])
    options = {
        "max_offsets": MAX_OFFSETS_DEFAULT, "timeout_ms": TIMEOUT_MS_DEFAULT, **source, **value, **trigger,
        "dead_letters": dead,
    }  # fmt: skip
    name = found.get("name") or table or topic
    return PipelineJob(name, "mirror", target, table or topic, is_table, servers, every, options)


def _with_access(servers: str, places: list[Any], base: Path) -> Servers:
    """The servers with `tls`, `user` and so on of these places, the last of which says it; taken out of the last."""
    said = {name: place[name] for place in places for name in _ACCESS if place.get(name)}
    for name in _ACCESS:
        places[-1].pop(name, None)
    file = said.pop("password_file", None)
    if file is not None:
        if "password" in said:
            raise InvalidRequestError("give password or password_file, not both")
        try:
            said["password"] = (base / file).read_text().rstrip("\n")
        except OSError as error:
            raise InvalidRequestError(f"password_file: cannot read {base / file}: {error.strerror}") from None
    files = ["tls_certificate", "tls_key"]
    if said.get("tls", "").lower() not in {"", *ON, *OFF}:
        files.append("tls")
    said.update({name: str(base / said[name]) for name in files if name in said})
    return Servers(servers, {SETTINGS[name]: value for name, value in said.items()})


def _value(found: Mapping[str, Any], base: Path, *, is_table: bool) -> dict[str, Any]:
    value = dict(found)
    row = FORMATS.get(value.get("format", "raw"))
    if row is not None and row.schema_is_file and value.get("schema", "").lstrip()[:1] not in {"", "{", "["}:
        value["schema"] = str(base / value["schema"])
    if "writers" in value:
        value["writers"] = {
            number: text if str(text).lstrip()[:1] == "{" else str(base / str(text))
            for number, text in value["writers"].items()
        }
    if is_table and "headers" in value:
        raise InvalidRequestError("value.headers is for a topic: rows of tables have none")
    check_choice("value.key", value.get("key", "raw"), KEY_FORMATS)
    own = {name: item for name, item in value.items() if name not in {"key", "headers"}}
    try:
        spec = value_spec(ValueOptions(**own))
        columns = fixed_columns(spec)
        if columns is not None and spec.projection is not None:
            shape = RowShape(is_table=is_table, headers=bool(value.get("headers")))
            shape.columns(with_rest(spec, columns), spec.projection)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"[value] {error.message}") from error
    return value


# -- running --------------------------------------------------------------------------------------------------------


def run_pipeline(
    spark: "SparkSession",
    jobs: Sequence[PipelineJob],
    *,
    once: bool,
    told: Told | None = None,
    keep_going: bool = False,
) -> list[Outcome]:
    """Run jobs. `once`: mirrors one after the other until all that is there is through, then the upkeep; else all side by
    side, until one fails (which is raised, once the others are stopped) or KeyboardInterrupt (which ends it well).

    `told` hears of each epoch and each piece of upkeep. `keep_going`: where one fails, its outcome says why, and the others
    go on, until all mirrors have failed.
    """
    run = _Run(spark, jobs, told or (lambda _: None), keep_going=keep_going)
    if once:
        run.once()
        return list(run.outcomes.values())
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        run.side_by_side(stack)
    return list(run.outcomes.values())


class _Run:
    """One run of a file's jobs."""

    def __init__(
        self, spark: "SparkSession", jobs: Sequence[PipelineJob], tell: Told, *, keep_going: bool
    ) -> None:
        self.outcomes = {job.name: Outcome(job.name, job.kind) for job in jobs}
        self._spark = spark
        self._tell = tell
        self._keep_going = keep_going
        self._mirrors = [job for job in jobs if job.kind == "mirror"]
        self._upkeep = [job for job in jobs if job.kind != "mirror"]

    def once(self) -> None:
        """The mirrors one after the other, then the upkeep."""
        for job in self._mirrors:
            with self._may_fail(job.name):
                _start(self._spark, job, self.outcomes[job.name], self._tell, once=True)
        for job in self._upkeep:
            self._keep_up(job)

    def side_by_side(self, stack: ExitStack) -> None:
        """All at once, until one fails; or, where the others go on, until all mirrors have failed."""
        due = {job.name: time.monotonic() + parse_age(job.every).total_seconds() for job in self._upkeep}
        queries: dict[str, MirrorQuery] = {}
        for job in self._mirrors:
            with self._may_fail(job.name):
                query = _start(self._spark, job, self.outcomes[job.name], self._tell, once=False)
                queries[job.name] = stack.enter_context(query)
        while queries or not self._mirrors:
            for name, query in list(queries.items()):
                if not query.running:
                    with self._may_fail(name):
                        query.wait()
                    del queries[name]
            for job in self._upkeep:
                if time.monotonic() >= due[job.name]:
                    self._keep_up(job)
                    due[job.name] = time.monotonic() + parse_age(job.every).total_seconds()
            time.sleep(LOOK_S)

    @contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._keep_going:
                raise
            outcome = self.outcomes[name]
            outcome.failure = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            self._tell(outcome)

    def _keep_up(self, job: PipelineJob) -> None:
        if self.outcomes[job.name].failure is None:
            with self._may_fail(job.name):
                _keep_up(job, self.outcomes[job.name], self._tell)


def _start(
    spark: "SparkSession", job: PipelineJob, outcome: Outcome, tell: Told, *, once: bool
) -> MirrorQuery:
    def on_epoch(progress: Any) -> None:
        _note(outcome, progress)
        tell(outcome)

    run: Any = mirror_table if job.is_table else mirror_topic
    query: MirrorQuery = run(
        spark,
        job.servers,
        job.source,
        job.target,
        every=None if once else job.every,
        on_epoch=on_epoch,
        **job.options,
    )
    _note(outcome, query.progress)
    return query


def _note(outcome: Outcome, progress: Any) -> None:
    outcome.rows, outcome.files, outcome.epochs = progress.rows, progress.files, progress.epochs
    outcome.dead_letters, outcome.positions = progress.dead_letters, dict(progress.positions)


def _keep_up(job: PipelineJob, outcome: Outcome, tell: Told) -> None:
    """Next time will do where there is no table yet, or a writer was faster."""
    with opened(job.target) as lake:
        if lake.schema() is None:
            return
    try:
        done: Any = (compact if job.kind == "compact" else expire)(job.target, **job.options)
    except TargetConflictError as error:
        outcome.problem = error.message
        tell(outcome)
        return
    outcome.problem = None
    outcome.files += done.removed if job.kind == "compact" else done.files
    outcome.epochs += 1
    tell(outcome)
