"""Who has a say in a shard: voters, those on their way out, and those that only listen. See `antiphon.records.members`."""

from antiphon.records.members import Members, MembersIndex, NodeId

__all__ = ["Members", "MembersIndex", "NodeId"]
