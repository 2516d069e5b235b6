"""In which directions groups that have members go over from one of Kafka's protocols to the other."""

from enum import StrEnum


class MigrationPolicy(StrEnum):
    """Kafka's `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"  # from classic to consumer, when the first member of the consumer protocol joins
    DOWNGRADE = "downgrade"  # from consumer to classic, when the last one has gone
    BIDIRECTIONAL = "bidirectional"

    @property
    def is_on(self) -> bool:
        """May a group have members of both protocols?"""
        return self is not MigrationPolicy.DISABLED

    @property
    def upgrades(self) -> bool:
        """Does a classic group become one of the consumer protocol?"""
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def downgrades(self) -> bool:
        """Does a group of the consumer protocol become a classic one?"""
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}
