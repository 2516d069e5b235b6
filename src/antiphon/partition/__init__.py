"""One replica of one shard: its log, protocol, table and clients, behind one small interface.

Kafka calls a shard a partition, and its broker calls what it holds of one `Partition`; so does this package. A node
(`antiphon.node`) opens partitions and closes them. It hands each one the services that it needs (`services.py`): the
connections, the disk's thread, the clock, the end of a turn of the event loop.
"""
