"""The pure replication protocol: events in, actions out."""
