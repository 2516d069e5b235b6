"""Who has a say in a shard: voters, those on their way out, and those that only listen.

A change of voters is joint: as long as `outgoing` is not empty, commits and elections need a majority of `voters` *and* a
majority of `outgoing`, so that no two decisions are made by sets that do not meet (S0.2). A node that is to become a voter
is a learner first: it is fed, and does not count, until it has caught up.
"""

import msgspec

NodeId = int


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of one shard at one moment. `outgoing`: the voters before, while a change is under way."""

    voters: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Is a change of voters under way?"""
        return bool(self.outgoing)

    @property
    def voting(self) -> tuple[NodeId, ...]:
        """Everybody whose acknowledgement or vote counts somewhere, each once, voters first."""
        return (*self.voters, *(node for node in self.outgoing if node not in self.voters))

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        """Everybody who holds a replica, each once."""
        voting = self.voting
        return (*voting, *(node for node in self.learners if node not in voting))

    @property
    def sets(self) -> tuple[tuple[NodeId, ...], ...]:
        """The sets that must each agree: the voters, and the outgoing ones while there are any."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)
