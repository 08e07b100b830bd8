"""The message log on Kafka, using librdkafka (confluent-kafka). Import `message_log` only when Kafka is configured."""
