"""What a pipeline's jobs name in the cluster, and is not there: asked before anything is started."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from antiphon.client.access import access_of
from antiphon.client.sync import Client
from antiphon.errors import AntiphonError
from antiphon.lake.pipeline import PipelineJob
from antiphon.model.metadata import ClusterMeta, Kind
from antiphon.spark.servers import SETTINGS, access_options

TIMEOUT_S: Final = 5.0


class Problem(NamedTuple):
    """Why a job could not run, and the command that mends it; empty where there is none."""

    job: str
    what: str
    do: str = ""


def ask(jobs: Sequence[PipelineJob]) -> list[Problem]:
    """Look for the topics, tables and dead-letter topics of all mirrors. Each cluster is asked once."""
    problems: list[Problem] = []
    found: dict[tuple[str, str], ClusterMeta | str] = {}
    for job in jobs:
        if job.source is None:
            continue
        place = (str(job.servers), repr(sorted(access_options(job.servers).items())))
        if place not in found:
            found[place] = _metadata(job.servers)
        meta = found[place]
        if isinstance(meta, str):
            problems.append(Problem(job.name, meta))
        else:
            problems += _missing(job, meta)
    return problems


def _metadata(servers: str) -> ClusterMeta | str:
    """What is there, or why that cannot be found out."""
    said = access_options(servers)
    try:
        access = access_of(**{name: said.get(option, "") for name, option in SETTINGS.items()})
        account = None if access is None else access.account
        dialing = None if access is None else access.dialing()
        with Client(str(servers), timeout_s=TIMEOUT_S, account=account, tls=dialing) as db:
            db.connect(TIMEOUT_S)
            return db.metadata()
    except AntiphonError as error:
        return error.message


def _missing(job: PipelineJob, meta: ClusterMeta) -> list[Problem]:
    kinds = {topic.name: topic.kind for topic in meta.topics}
    wanted = [(job.source or "", Kind.TABLE if job.is_table else Kind.TOPIC, "")]
    if job.options.get("dead_letters"):
        wanted.append((job.options["dead_letters"], Kind.TOPIC, "for dead letters "))
    problems = []
    for name, kind, purpose in wanted:
        found = kinds.get(name)
        if found is None:
            what = f"the {kind.value} {name} {purpose}does not exist"
            problems.append(
                Problem(job.name, what, f"antiphon {kind.value} create {name} --servers {job.servers}")
            )
        elif found is not kind:
            problems.append(Problem(job.name, f"{name} {purpose}is a {found.value}, not a {kind.value}"))
    return problems
