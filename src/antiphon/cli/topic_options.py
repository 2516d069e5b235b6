"""How a topic is replicated, on the command line: the options' help, what is in force, and what a choice may cost."""

from collections.abc import Mapping
from typing import Annotated

import typer

from antiphon.cli.settings_command import FROM
from antiphon.coordination.profiles import DEFAULTS, MULTI_DEFAULTS, PROFILES, normal_name, replication_of
from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.model.metadata import TopicMeta
from antiphon.model.node_settings import FOR_TOPICS, NodeSettingsReply, Source, own_name
from antiphon.replication.commit_rule import spellings_and_meanings

ProfileOption = Annotated[
    str,
    typer.Option(help=f"A bundle of the options below: {', '.join(PROFILES)}; by default the cluster's."),
]
CommitOption = Annotated[
    str | None,
    typer.Option(help=f"When an entry is committed: {spellings_and_meanings()}."),
]
ElectionOption = Annotated[
    str | None,
    typer.Option(
        help="Who chooses leaders: coordinator, raft (the replicas vote), manual (an operator). For good."
    ),
]
WritersOption = Annotated[
    str | None,
    typer.Option(help="Who may write: single (the leader), multi (every replica; tables only). For good."),
]
SplitBrainOption = Annotated[
    bool,
    typer.Option(
        "--i-accept-split-brain",
        help="Allow a commit rule that fewer than a majority can keep: an election may then lose what was acknowledged.",
    ),
]


def with_options(
    settings: dict[str, str],
    *,
    commit: str | None,
    election: str | None = None,
    writers: str | None = None,
    accept_split_brain: bool = False,
) -> dict[str, str]:
    """Settings with what was said by options of their own; those win over --config."""
    own = {
        "commit": commit,
        "election": election,
        "writers": writers,
        "accept.split.brain": "true" if accept_split_brain else None,
    }
    return settings | {name: value for name, value in own.items() if value is not None}


def in_force(topic: TopicMeta) -> list[tuple[str, str, str]]:
    """(option, value, where it comes from: set, profile or default) of every replication option of a topic."""
    own = {normal_name(name): value for name, value in topic.config.items()}
    bundle = PROFILES.get(topic.profile, {})
    if own.get("writers", bundle.get("writers")) == "multi":
        bundle = {**bundle, **MULTI_DEFAULTS}
    rows = []
    for name, default in DEFAULTS.items():
        if name in own:
            rows.append((name, own[name], "set"))
        elif name in bundle:
            rows.append((name, bundle[name], f"profile {topic.profile}"))
        else:
            rows.append((name, default, "default"))
    return rows


def settings_in_force(
    topic: TopicMeta, of_node: Mapping[str, tuple[str, str]] | None = None
) -> list[tuple[str, str, str]]:
    """(setting, value, where it comes from) of every setting of a topic that is not about replication.

    `of_node`: values, and where they stand, of the settings for which a node has a value where a topic has none.
    """
    found = {name: (setting.default, "default") for name, setting in TOPIC_SETTINGS.items()}
    found |= of_node or {}
    found |= {name: (value, "set") for name, value in topic.config.items()}  # of a newer version, too
    return [(name, *found[name]) for name in sorted(found) if normal_name(name) not in DEFAULTS]


def values_of_node(told: NodeSettingsReply, *, of_table: bool = False) -> dict[str, tuple[str, str]]:
    """What a node has for topics (or tables) that set nothing, and where it stands if that is not the default."""
    found = {}
    for name in TOPIC_SETTINGS:
        own = own_name(name, of_table=of_table)
        values = () if own is None else told.values.get(own, ())
        if values and values[0][1] != Source.DEFAULT:
            found[name] = (values[0][0], f"node {told.node}: {FROM[values[0][1]]}")
    return found


def describe_source(name: str, value: str, source: str) -> str:
    """The source of a setting in words for people, with what is easily overlooked."""
    if name in FOR_TOPICS and source == "default":
        return "default, where a node's file says nothing else"
    if name == "retention.ms" and value != "-1":
        return f"{source}; counts from the records' own timestamps"
    return source


def caveats(topic: TopicMeta) -> list[str]:
    """One line for each thing that a topic's options may cost and that surprises (C7, S3.32, S4.28)."""
    options = replication_of(topic.profile, topic.config)
    found = []
    rule = options.commit
    if rule.may_lose(topic.replicas) and not options.is_multi and topic.replicas > 1:
        found.append(
            f"commit={rule}: acknowledged writes can be lost when the leader fails before a majority of replicas has them"
        )
    if options.is_multi:
        found.append(
            "writers=multi: a write is acknowledged by one replica alone and is lost if that never comes back; "
            "of two writes to one key at once one wins"
        )
    if options.unclean:
        found.append(
            "unclean.leader.election.enable=true: when no live replica is left, one that lacks committed records may lead"
        )
    if options.isolation == "uncommitted":
        found.append(
            "isolation=uncommitted: reads that name no isolation see records that may vanish when the leader fails; ask for "
            "isolation=committed where that matters"
        )
    return found
