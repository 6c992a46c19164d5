"""A complete pipeline: orders from Kafka into Delta, Iceberg and Kafka, each row once. Start with `job`."""
