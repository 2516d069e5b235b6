"""Topics and tables as the metadata has them: making one, and their names."""

from typing import NamedTuple

from antiphon.client.cluster import Cluster
from antiphon.client.given import Settings, check_text, check_whole, settings_text
from antiphon.errors import TopicExistsError, UnknownTopicError, WrongKindError
from antiphon.model.internal import PREFIX
from antiphon.model.metadata import ClusterMeta, Kind, TopicMeta
from antiphon.model.requests import CreateTopic


class Asked(NamedTuple):
    """A topic or table to make, as `AsyncClient.create_topic` says it."""

    kind: Kind
    name: str
    shards: int | None
    replicas: int
    profile: str
    config: Settings | None
    exist_ok: bool

    async def create(self, cluster: Cluster, timeout_s: float) -> None:
        """Make it, or see that the one that is there is the same. Raises TopicExistsError, InvalidRequestError."""
        check_text(name=self.name, profile=self.profile)
        check_whole(shards=self.shards, replicas=self.replicas)
        config = settings_text(self.config)
        shards = 1 if self.shards is None else self.shards
        request = CreateTopic(self.name, self.kind, shards, self.replicas, self.profile, config)
        try:
            await cluster.call_any(request, timeout_s=timeout_s, done_if=TopicExistsError)
        except TopicExistsError:
            if not self.exist_ok:
                raise
        await cluster.until(lambda: self.name in cluster.topics, timeout_s)
        if self.exist_ok:
            self._check(cluster.topics[self.name], config)

    def _check(self, there: TopicMeta, config: dict[str, str]) -> None:
        """Raise for one that is there and is another. What was not asked for may be anything."""
        if there.kind is not self.kind:
            raise WrongKindError(
                f"{self.name!r} is there, and is a {there.kind}, not a {self.kind}", name=self.name
            )
        asked: list[tuple[str, object, object]] = [
            ("shards", self.shards, len(there.shards)),
            ("replicas", self.replicas or None, there.replicas),
            ("profile", self.profile or None, there.profile),
            *((name, value, there.config.get(name)) for name, value in config.items()),
        ]
        for what, wanted, found in asked:
            if wanted is not None and wanted != found:
                told = "is not set" if found is None else f"is {found}"
                raise TopicExistsError(
                    f"{self.kind} {self.name!r} is there, and its {what} {told}, not {wanted}: open it with "
                    f".{self.kind}(), or change it with .alter_topic()",
                    name=self.name,
                )


async def described(cluster: Cluster, name: str) -> TopicMeta:
    """What the metadata says of a topic or table. Raises UnknownTopicError."""
    meta = cluster.topics.get(name)
    if meta is None:
        await cluster.refresh()
        meta = cluster.topics.get(name)
    if meta is None:
        raise UnknownTopicError(f"there is no topic or table {name!r}", name=name)
    return meta


def names(meta: ClusterMeta, kind: Kind, *, internal: bool) -> list[str]:
    """In order; without those that belong to the cluster itself, unless they are asked for."""
    return sorted(
        topic.name
        for topic in meta.topics
        if topic.kind is kind and (internal or not topic.name.startswith(PREFIX))
    )
