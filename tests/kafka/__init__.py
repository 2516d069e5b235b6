"""The Kafka listener: codecs against two independent ones, groups as a state machine, real clients over sockets."""
