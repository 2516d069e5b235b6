"""What carries out requests: one class per group of APIs, its methods named in the rows of `antiphon.kafka.apis`."""
