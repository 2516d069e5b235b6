"""Kafka's messages, one module per family, as `antiphon.kafka.schema` reads them."""
