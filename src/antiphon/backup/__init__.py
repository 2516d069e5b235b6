"""Backups of a whole cluster at one cut: taken by a client, restored into fresh directories or into new topics.

Taking one: `cut` (the moment), `log_copy` (logs and states, as bytes), `create` (all of it, incrementally). What lies where:
`place` (files), `manifest` (what belongs to a backup). Reading: `verify`, `restore_cluster`, `restore_topic`.
"""
